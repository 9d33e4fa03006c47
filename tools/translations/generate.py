"""Notebooks in another language: the same code and outputs, the text from the catalogue.

What has no translation of its present English stays English, and says so. Links and pictures lead
to where those of the English notebook do, and to the translation where there is one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path, PurePosixPath

from nbformat import NotebookNode

from d2lpar.command.course import languages, merging, notebook_file
from d2lpar.timeline import whole_file

from . import cell_strings
from .catalogues import (
    COURSE,
    GUIDES,
    INSTALL,
    NAVIGATION,
    OF_PACKAGE,
    README,
    Unit,
    common,
    notebooks,
    of_string,
    pages,
    stands_above,
    units,
)

MISSING = "not translated yet"
RUN = "ran_as"  # in a cell that has run in the language: the English one at that time
NAME = re.compile(r"\[(← |)([^\]]+?)( →|)\]")  # of a link, between arrows
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
PLACE = re.compile(r"\]\(([^)\s#:]*)#([^)\s]+)\)")  # a heading that a link leads to


def write(language: str) -> list[Path]:
    """Write all notebooks and pages of a language. Returns the files that have changed."""
    made = {
        COURSE / language / n: notebook_file.serialised(translated(language, n))
        for n in notebooks()
    }
    made |= {page_file(language, page): translated_page(language, page) for page in pages()}
    changed = []
    for file, text in made.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            whole_file.write(file, text)
            changed.append(file)
    return changed


def page_file(language: str, page: Path) -> Path:
    """Where a page is in a language: beside README.md, or in a folder of the language."""
    if page == README:
        return COURSE.parent / f"{page.stem}.{language}{page.suffix}"
    if stands_above(page):
        return COURSE.parent / page.parent / language / page.name
    return COURSE / language / page


def translated_page(language: str, page: Path) -> str:
    """A page in a language."""
    missing = common(language)[MISSING]
    text = "".join(
        unit.translated if unit.is_current else f"*({missing})*\n\n{unit.english}"
        for unit in units(language, page)
    )
    text = PLACE.sub(partial(_place, language, page), text)
    if not stands_above(page):
        return languages.relinked(text, page, _out)
    moved = _from_above if page == README else _from_guide
    return languages.relinked(text, page, partial(moved, language))


def _from_above(language: str, path: PurePosixPath) -> PurePosixPath:
    """A file as the page above the course's folder sees it."""
    is_lesson = path.parts[:1] == (COURSE.name,) and path.suffix == ".ipynb"
    if is_lesson or path == PurePosixPath(COURSE.name, "museum", README):
        return PurePosixPath(COURSE.name, language, *path.parts[1:])
    if stands_above(Path(path)) and Path(path) in pages():
        return PurePosixPath(path.parent, language, path.name) if path.parts[1:] else path
    return path


def _from_guide(language: str, path: PurePosixPath) -> PurePosixPath:
    """A file as a guide sees it, which is one folder deeper than the English one."""
    is_guide = path.parts[:1] == (GUIDES,) and Path(path) in pages()
    return path if is_guide else PurePosixPath("..", _from_above(language, path))


def translated(language: str, notebook: Path) -> NotebookNode:
    """A notebook in a language."""
    known = {unit.cell: unit for unit in units(language, notebook)}
    said, titles = common(language), _titles(language)
    found = notebook_file.read(COURSE / notebook)
    recorded = _recorded(language, notebook)
    for cell in found.cells:
        if cell.cell_type == "code" and INSTALL not in notebook_file.tags(cell):
            _in_language(cell, known, recorded)
        if cell.cell_type != "markdown":
            continue
        if NAVIGATION in notebook_file.tags(cell):
            cell.source = _navigation(cell.source, titles | said)
        elif known[cell.id].is_current:
            cell.source = known[cell.id].translated
        else:
            cell.source = f"*({said[MISSING]})*\n\n{cell.source}"
        cell.source = PLACE.sub(partial(_place, language, notebook), cell.source)
        cell.source = languages.relinked(cell.source, notebook, _out)
    found.metadata[merging.LANGUAGE] = language
    return found


def _in_language(
    cell: NotebookNode, known: Mapping[str, Unit], recorded: Mapping[str, NotebookNode]
) -> None:
    """Translate the strings of a cell of code, and take what it puts out in the language: from the
    last run, if that was of the same code, and the English is still as it was then."""

    def said(text: str) -> str:
        unit = known.get(of_string(text))
        return unit.translated if unit and unit.is_current else text

    english = digest(cell)
    cell.source = cell_strings.replaced(cell.source, said)
    own = recorded.get(cell.id)
    if own and own.metadata.get(RUN) == english and own.source == cell.source:
        cell.outputs = own.outputs
        cell.metadata[RUN] = english


def digest(cell: NotebookNode) -> str:
    """What tells whether an English cell of code is as it was: its source and its outputs."""
    shown = json.dumps([cell.source, notebook_file.text_of(cell)])
    return hashlib.sha1(shown.encode(), usedforsecurity=False).hexdigest()[:12]


def _recorded(language: str, notebook: Path) -> dict[str, NotebookNode]:
    """The cells of code of a language's notebook that have run in it."""
    file = COURSE / language / notebook
    cells = notebook_file.read(file).cells if file.exists() else []
    return {cell.id: cell for cell in cells if RUN in cell.metadata}


@cache
def _titles(language: str) -> dict[str, str]:
    """The titles of all notebooks, by the English ones."""
    return dict(
        pair for each in notebooks() for pair in list(_headings(language, each).items())[:1]
    )


@cache
def _headings(language: str, notebook: Path) -> dict[str, str]:
    """The headings of a notebook, by the English ones, in their order."""
    found = {}
    for unit in units(language, notebook):
        if unit.is_current:
            english, own = (HEADING.findall(text) for text in (unit.english, unit.translated))
            found |= {one: other for (_, one), (_, other) in zip(english, own, strict=False)}
    return found


def _place(language: str, text: Path, link: re.Match) -> str:
    """A link to a heading, as JupyterLab calls it in notebooks, and code hosts on pages."""
    file = Path(os.path.normpath(text.parent / link[1])) if link[1] else text
    called = _hyphened if file in notebooks() else _slug if file in pages() else None
    if called is None:
        return link[0]
    places = {called(one): called(own) for one, own in _headings(language, file).items()}
    return f"]({link[1]}#{places.get(link[2], link[2])})"


def _slug(words: str) -> str:
    """Small letters, without marks."""
    return re.sub(r"[^\w-]", "", _hyphened(words).lower())


def _hyphened(words: str) -> str:
    """The words, with hyphens between them."""
    return words.replace(" ", "-")


def _navigation(line: str, names: dict[str, str]) -> str:
    """Links with the names of their targets in the language, between the same arrows."""

    def named(link: re.Match) -> str:
        return f"[{link[1]}{names.get(link[2], link[2])}{link[3]}]"

    return NAME.sub(named, line)


def _out(path: PurePosixPath) -> PurePosixPath:
    """A file as a notebook in the language's folder sees it."""
    is_translated = Path(path) in pages() or (path.suffix == ".ipynb" and (COURSE / path).exists())
    return path if is_translated else PurePosixPath("..", path)


def stale(language: str) -> Iterator[tuple[Path, str]]:
    """Units without a translation of their present English: where they are, and their names."""
    for text in (*notebooks(), *pages(), *OF_PACKAGE):
        for unit in units(language, text):
            if not unit.is_current:
                yield text, unit.cell
