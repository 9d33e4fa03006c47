"""Lessons in other languages: a folder of the course for each, as `zh` for Chinese.

They are notebooks like the English ones, with links that lead out of that folder to all that has no
translation. In a student's copy they stand where the English ones would.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from ...locale import CHOSEN, ENGLISH
from ...timeline import whole_file
from . import notebook_file

UNKNOWN = "no lessons in {language!r}: there are {known}"

_TARGET = re.compile(r"(\]\(|<img[^>]* src=\")([^)\s#\"]+)")
_ELSEWHERE = re.compile(r"[a-z]+:|/")  # an address, not a file of the course
_OUT = ".."
NOWHERE = PurePosixPath("/-/-/-")

Moved = Callable[[PurePosixPath], PurePosixPath]  # where a file of the course is, seen from another


def known(source: Path) -> list[str]:
    """The languages of the course in `source`, English first."""
    folders = (path.parent.name for path in source.glob("??/[0-9]*.ipynb"))
    return [ENGLISH, *sorted(set(folders))]


def chosen(hidden: Path) -> str:
    """The language of the copy with this hidden folder."""
    file = hidden / CHOSEN
    return file.read_text(encoding="utf-8").strip() if file.exists() else ENGLISH


def choose(source: Path, hidden: Path, language: str) -> None:
    """Let the copy be in a language from its next update on. Raises ValueError if there is none."""
    if language not in known(source):
        raise ValueError(UNKNOWN.format(language=language, known=", ".join(known(source))))
    hidden.mkdir(parents=True, exist_ok=True)
    whole_file.write(hidden / CHOSEN, f"{language}\n")


def folder_of(source: Path, language: str) -> Path:
    """Where the lessons in a language are: of one that has none, the English ones."""
    return source / language if language in known(source)[1:] else source


@contextmanager
def source_in(source: Path, language: str) -> Iterator[Path]:
    """A folder with all files of the course in a language, for the block."""
    if language not in known(source)[1:]:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        whole = Path(folder) / source.name
        others = shutil.ignore_patterns(*known(source)[1:])
        shutil.copytree(source, whole, symlinks=True, ignore=others)
        for path in _lessons_and_pages(source / language):
            relative = path.relative_to(source / language)
            whole_file.write(whole / relative, _in_place(path, relative))
        yield whole


def _lessons_and_pages(folder: Path) -> Iterator[Path]:
    """Those that stand for English ones of the same name."""
    for path in folder.rglob("*"):
        if path.suffix in (".ipynb", ".md") and (folder.parent / path.relative_to(folder)).exists():
            yield path


def _in_place(path: Path, relative: Path) -> str:
    """The text of such a file, its links as from where the English one is."""
    if path.suffix == ".md":
        return relinked(path.read_text(encoding="utf-8"), relative, into)
    notebook = notebook_file.read(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relinked(cell.source, relative, into)
    return notebook_file.serialised(notebook)


def into(path: PurePosixPath) -> PurePosixPath:
    """A file as an English notebook sees it, from what one in a language's folder does."""
    return PurePosixPath(*path.parts[1:]) if path.parts[:1] == (_OUT,) else path


def relinked(text: str, notebook: Path, moved: Moved) -> str:
    """The text of a notebook, the links of which lead to files that have `moved`: paths are
    relative to the folder of the lessons, as that of the `notebook` is."""
    return _TARGET.sub(partial(_relinked, notebook.parent, moved), text)


def _relinked(folder: Path, moved: Moved, link: re.Match[str]) -> str:
    opening, target = link.groups()
    if _ELSEWHERE.match(target):
        return link[0]
    path = moved(PurePosixPath(Path(os.path.normpath(folder / target)).as_posix()))
    # From nowhere: what lies above the lessons is not what lies above this process's folder.
    return opening + Path(os.path.relpath(NOWHERE / path, NOWHERE / folder)).as_posix()
