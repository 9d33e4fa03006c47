"""A catalogue for each notebook and language: gettext's, with a unit for each cell of text.

A unit knows its cell by name, and the English that it was made from word by word: so whatever
changes in English is found, and shown beside its translation.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po

from d2lpar.command.course import notebook_file
from d2lpar.timeline import whole_file

from . import cell_strings, strings

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "notebooks"
README, GUIDES, PAGE = Path("README.md"), "docs", "page"
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
MESSAGES, LABELS = Path("messages"), Path("labels")  # what the package says, and writes in pictures
OF_PACKAGE = {MESSAGES: strings.english, LABELS: strings.labels}
COMMON = "course.po"  # of a language: what is said around the lessons
NAVIGATION = "navigation"  # cells that are made of the titles of others
INSTALL = "install"  # and those that install the course where it is not
STRING = re.compile(r"m[0-9a-f]{8}")
HEADER = """\
msgid ""
msgstr ""
"Language: {language}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""


class Unit(NamedTuple):
    """A cell of text, or a string of code: its name, its English, and its translation with the
    English of that.

    Both are empty where there is none.
    """

    cell: str
    english: str
    translated: str
    made_from: str

    @property
    def is_current(self) -> bool:
        """Whether the translation is of this English."""
        return bool(self.translated) and self.made_from == self.english


def languages() -> list[str]:
    """The languages that have catalogues, such as "zh"."""
    return sorted({path.relative_to(COURSE).parts[0] for path in COURSE.glob("??/*.po")})


def notebooks() -> list[Path]:
    """The English notebooks, relative to the course's folder."""
    folders = ("", "deeper/", "museum/")
    return [p.relative_to(COURSE) for f in folders for p in sorted(COURSE.glob(f"{f}*.ipynb"))]


def pages() -> list[Path]:
    """The pages beside the notebooks, relative to the same folder: README.md stands above it, and
    so do the guides, but for the one that tells how to translate."""
    guides = sorted((COURSE.parent / GUIDES).glob("*.md"))
    found = [Path(GUIDES, file.name) for file in guides if file.stem != "translations"]
    return [README, Path("museum", README), *found]


def stands_above(page: Path) -> bool:
    """Whether a page is not in the course's folder, but in the one above it."""
    return page == README or page.parts[0] == GUIDES


def english_file(text: Path) -> Path:
    """The file with the English of a notebook or page."""
    return (COURSE.parent if stands_above(text) else COURSE) / text


def catalogue_file(language: str, text: Path) -> Path:
    """Where the catalogue of a notebook or page, or of what the package says, is."""
    if text in OF_PACKAGE:
        return strings.PACKAGE / "locale" / language / text.with_suffix(".po")
    return COURSE / language / text.with_suffix(".po")


def units(language: str, notebook: Path) -> list[Unit]:
    """Those of a notebook, in its order."""
    known = _read(catalogue_file(language, notebook))
    return [
        Unit(name, english, *known.get(name, ("", ""))[::-1]) for name, english in _texts(notebook)
    ]


def enter(language: str, notebook: Path, translations: dict[str, str]) -> None:
    """Write translations, by the names of cells, into the catalogue. Raises KeyError for a name
    that no cell has."""
    english = dict(_texts(notebook))
    unknown = [name for name in translations if name not in english]
    if unknown:
        raise KeyError(f"{notebook}: no cell of text is called {', '.join(unknown)}")
    known = _read(catalogue_file(language, notebook))
    new = {name: (english[name], _framed(english[name], t)) for name, t in translations.items()}
    _write(catalogue_file(language, notebook), language, english, known | new)


def _framed(english: str, text: str) -> str:
    """A translation with the empty lines around its English, which a sheet does not keep."""
    begin = english[: len(english) - len(english.lstrip("\n"))]
    end = english[len(english.rstrip("\n")) :]
    return begin + text.strip("\n") + end if english.strip("\n") else english


def of_string(text: str) -> str:
    """The name of a string of code: it has the same translation wherever a notebook has it."""
    return strings.name_of(text)


def is_string(name: str) -> bool:
    """Whether a unit is such a one, or a message, by its name."""
    return bool(STRING.fullmatch(name))


def common(language: str) -> dict[str, str]:
    """What is said around the lessons, such as "Contents", by its English."""
    file = COURSE / language / COMMON
    return {str(message.id): str(message.string) for message in _messages(file)}


def _texts(text: Path) -> Iterator[tuple[str, str]]:
    """The units of a notebook, of the package, or a page: its sections."""
    if text in OF_PACKAGE:
        yield from OF_PACKAGE[text]().items()
        return
    file = english_file(text)
    if text.suffix == ".md":
        first, *others = SECTION.split(file.read_text(encoding="utf-8"))
        yield PAGE, first
        yield from ((f"s{strings.name_of(t.partition(chr(10))[0])[1:]}", t) for t in others)
        return
    cells = notebook_file.read(file).cells
    for cell in cells:
        if cell.cell_type == "markdown" and NAVIGATION not in notebook_file.tags(cell):
            yield cell.id, cell.source
    for cell in cells:
        if cell.cell_type == "code" and INSTALL not in notebook_file.tags(cell):
            yield from ((of_string(text), text) for text in cell_strings.texts(cell.source))


def _read(file: Path) -> dict[str, tuple[str, str]]:
    """The English and the translation of each cell that the catalogue has."""
    if not file.exists():
        return {}
    return {
        message.context: (str(message.id), str(message.string))
        for message in _messages(file)
        if message.context
    }


def _messages(file: Path) -> list[Message]:
    with file.open("rb") as text:
        return [message for message in read_po(text, abort_invalid=True) if message.id]


def _write(
    file: Path, language: str, english: dict[str, str], known: dict[str, tuple[str, str]]
) -> None:
    """Those of cells that are there, in their order; of others nothing is kept."""
    catalogue = Catalog()
    for name in english:
        if name in known:
            made_from, text = known[name]
            catalogue.add(made_from, text, context=name)
    file.parent.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    write_po(written, catalogue, width=0, omit_header=True)  # which would have the time in it
    whole_file.write(file, HEADER.format(language=language) + written.getvalue().decode())
