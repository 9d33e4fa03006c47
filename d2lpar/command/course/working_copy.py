"""A student's copy of the course, beside it: made once, brought up to date, given back fresh.

The copy has the folders of the course, so links and pictures lead to the same places. A hidden
folder in it holds what each file was when it was copied: only so can one tell who changed what.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from ...timeline import whole_file
from . import merging, notebook_file

SOURCE, COPY = "notebooks", "my"
BASE = ".course"  # in the copy: what its files were when they were copied
IGNORED = (".ipynb_checkpoints", "__pycache__", ".d2lpar", BASE)
ASIDE = "{stem} before {day}{number}{suffix}"
NEW = "{stem} (new){suffix}"
BOTH = "\n    both changed, the new one follows yours: {}"
FIRST_LESSON = "00_start_here.ipynb"


@dataclass(frozen=True)
class FileUpdate:
    """What happened to one file of the copy: what, and where to look, if anywhere."""

    file: Path
    what: str
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        places = "".join(BOTH.format(place) for place in self.where)
        return f"{self.file}: {self.what}{places}"


def course_folder(start: Path) -> Path:
    """The folder of the course that `start` lies in. Raises ValueError where there is none."""
    for folder in (start, *start.parents):
        if (folder / SOURCE / FIRST_LESSON).is_file():
            return folder
    raise ValueError(
        f"{start} is not inside a copy of the course: go to the folder with {SOURCE}/{FIRST_LESSON}"
    )


def update(course: Path) -> Iterator[FileUpdate]:
    """Bring the student's copy up to date; the first time, make it. Yields what has happened.

    What the student has not changed becomes the new version; what only the student has changed
    stays. A cell that both have changed is followed by its new version; beside any other such file
    the new one is put under another name.
    """
    source, copy = course / SOURCE, course / COPY
    for file in _files(source):
        relative = file.relative_to(source)
        try:
            step = _updated(file, copy / relative, copy / BASE / relative)
        except Exception as error:  # others come after it
            told = " ".join(f"{type(error).__name__}: {error}".split())
            step = f"left as it was: {told}", ()
        if step is not None:
            yield FileUpdate(Path(COPY) / relative, *step)


def reset(course: Path, lesson: str) -> Iterator[FileUpdate]:
    """A fresh copy of the lesson with this number and of its deeper half; the old is put aside.

    Raises ValueError for a number that no lesson has.
    """
    source, copy = course / SOURCE, course / COPY
    number = _number(course, lesson)
    for file in (each for each in _files(source) if each.name.startswith(f"{number}_")):
        relative = file.relative_to(source)
        own, base = copy / relative, copy / BASE / relative
        what = "fresh"
        if own.exists():
            aside = _aside(own)
            own.rename(aside)
            what = f"fresh; yours is {aside.name} now"
        _copy(file, own)
        _copy(file, base)
        yield FileUpdate(Path(COPY) / relative, what)


def lesson_file(course: Path, lesson: str) -> Path:
    """The student's copy of a lesson. Raises ValueError for a number that none has."""
    found = sorted((course / COPY).glob(f"{_number(course, lesson)}_*.ipynb"))
    named = [path for path in found if (course / SOURCE / path.name).is_file()]
    if not named:
        raise ValueError(f"no lesson {lesson} in {COPY}/: call `make update` first")
    return named[0]


def _number(course: Path, lesson: str) -> str:
    """A lesson's number as in the names of files. Raises ValueError for one that none has."""
    numbers = sorted(path.name[:2] for path in (course / SOURCE).glob("[0-9]*.ipynb"))
    if not lesson or lesson.zfill(2) not in numbers:
        raise ValueError(f"no lesson {lesson!r}: there are {', '.join(numbers)}")
    return lesson.zfill(2)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not set(path.relative_to(folder).parts) & set(IGNORED):
            yield path


def _updated(file: Path, own: Path, base: Path) -> tuple[str, tuple[str, ...]] | None:
    """Bring one file up to date: what has happened and where, or None if nothing."""
    new = file.read_bytes()
    before = base.read_bytes() if base.exists() else None
    if before == new and own.exists():
        return None
    if own.exists() and not own.is_file():
        step: tuple[str, tuple[str, ...]] = _replaced(file, own, "is no file"), ()
    elif not own.exists():
        if before == new:
            return None  # the student has deleted it
        step = "new", ()
        _copy(file, own)
    elif own.read_bytes() in (before, new):
        step = "the new version", ()
        _copy(file, own)
    elif file.suffix == ".ipynb" and before is not None:
        step = _merged(file, own, base)
    else:
        beside = own.with_name(NEW.format(stem=own.stem, suffix=own.suffix))
        _copy(file, beside)
        step = f"you have changed it; the new version is {beside.name}", ()
    _copy(file, base)
    return step


def _merged(file: Path, own: Path, base: Path) -> tuple[str, tuple[str, ...]]:
    try:
        mine = notebook_file.read(own)
    except notebook_file.UnreadableError as error:
        return _replaced(file, own, f"could not be read ({error})"), ()
    try:
        before = notebook_file.read(base)
    except notebook_file.UnreadableError:  # then everything of the student's is new
        before = nbformat.v4.new_notebook()
    merged = merging.merge(mine, before, notebook_file.read(file))
    whole_file.write(own, notebook_file.serialised(merged.notebook))
    return f"{merged.taken} cells are new", tuple(merged.both)


def _replaced(file: Path, own: Path, why: str) -> str:
    """Put the student's aside, and the new one in its place."""
    aside = _aside(own)
    own.rename(aside)
    _copy(file, own)
    return f"{why}; it is {aside.name} now"


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    unfinished = to.with_name(to.name + ".tmp")
    shutil.copyfile(file, unfinished)
    shutil.copymode(file, unfinished)
    unfinished.replace(to)


def _aside(own: Path) -> Path:
    """A name for what was there, that nothing has."""
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    number = 1
    while True:
        told = "" if number == 1 else f" ({number})"
        name = ASIDE.format(stem=own.stem, day=day, number=told, suffix=own.suffix)
        if not own.with_name(name).exists():
            return own.with_name(name)
        number += 1
