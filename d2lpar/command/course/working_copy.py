"""A student's copy of the course, beside it: made once, brought up to date, given back fresh.

The copy has the folders of the course, so links and pictures lead to the same places. A hidden
folder in it holds what each file was when it was copied: only so can one tell who changed what.
A notebook says itself which version it was brought up to: a page that was open before an update
saves the old one over it, and the next update notices. Of other files it notices where that old one
is the course's own; one that the student has changed besides is theirs. A file that has got another
name takes the student's copy with it (`former_names`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ...locale import COPY, HIDDEN
from ...timeline import waits, whole_file
from . import languages, merging, notebook_file
from .former_names import FORMER_NAMES, former

SOURCE, MUSEUM = "notebooks", "museum"
BASE = HIDDEN  # in the copy: what its files were when they were copied
EARLIER = ".earlier"  # in BASE: a folder for each file, with what it was at the updates before
LOCK = ".lock"  # in BASE
VERSION = "d2lpar_version"  # in a notebook's metadata: the version that the copy was brought up to
IGNORED = (".ipynb_checkpoints", "__pycache__", ".d2lpar", BASE, "PROMISES.md")
NEW = "{stem} (new{number}){suffix}"
ERROR_LINK = "leads to {target}, which is not there: left as it is"
BOTH = "\n    both changed, the new one follows yours: {}"
ASIDE = "put aside, for it is called {new} now, and there was one"
RENAMED = "{old} is called {new} now: say {number}"
FIRST_LESSON = "00_start_here.ipynb"


@dataclass(frozen=True)
class FileUpdate:
    """What happened to one file of the copy: what, and where to look, if anywhere."""

    file: Path
    what: str
    where: tuple[str, ...] = ()
    was: Path | None = None  # what it was called before

    def __str__(self) -> str:
        places = "".join(BOTH.format(place) for place in self.where)
        before = "" if self.was is None else f"your {self.was} until now; "
        return f"{self.file}: {before}{self.what}{places}"


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
    the new one is put under another name. What has got another name is moved there first, and the
    step says what it `was`. Links, also of the copy itself, stay links. Raises
    TimeoutError while another update goes on and on.
    """
    copy = course / COPY
    with waits.locked(copy / BASE / LOCK), _source(course) as source:
        for file in _files(source):
            relative, was = file.relative_to(source), None
            try:
                for old in _former(source, relative):
                    moved = _moved(copy, old, relative)
                    if moved is not None and moved != relative:
                        what = ASIDE.format(new=relative.name)
                        yield FileUpdate(Path(COPY) / moved, what, was=Path(COPY) / old)
                    elif moved is not None:
                        was = Path(COPY) / old
                step = _updated(file, copy / relative, copy / BASE, relative)
            except Exception as error:  # others come after it
                told = " ".join(f"{type(error).__name__}: {error}".split())
                step = f"left as it was: {told}", ()
            if was is not None and step is None:
                step = "nothing else is new", ()
            if step is not None:
                yield FileUpdate(Path(COPY) / relative, *step, was=was)


def reset(course: Path, lesson: str) -> Iterator[FileUpdate]:
    """A fresh copy of the lesson with this number and of its deeper half; the old is put aside.

    Raises ValueError for a number that no lesson has, TimeoutError as `update` does.
    """
    copy, number = course / COPY, _number(course, lesson)
    with waits.locked(copy / BASE / LOCK), _source(course) as source:
        for file in (each for each in _files(source) if each.name.startswith(f"{number}_")):
            relative = file.relative_to(source)
            if relative.parts[0] == MUSEUM:  # its rooms have numbers of their own
                continue
            own = copy / relative
            for old in _former(source, relative):
                _moved(copy, old, relative)
            what = "fresh"
            if _exists(own):
                what = f"fresh; yours is {whole_file.put_aside(own).name} now"
            _fresh(file, own)
            _remember(file, copy / BASE, relative)
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
    new = FORMER_NAMES.get(f"{lesson.removesuffix('.ipynb')}.ipynb")
    if new is not None:
        stem = new.removesuffix(".ipynb")
        raise ValueError(RENAMED.format(old=lesson, new=stem, number=stem[:2]))
    numbers = sorted(path.name[:2] for path in (course / SOURCE).glob("[0-9]*.ipynb"))
    if not lesson or lesson.zfill(2) not in numbers:
        raise ValueError(f"no lesson {lesson!r}: there are {', '.join(numbers)}")
    return lesson.zfill(2)


def choose_language(course: Path, language: str) -> None:
    """Let the copy be in a language, such as "zh", from the next update on.

    Raises ValueError for one that the course does not have.
    """
    languages.choose(course / SOURCE, course / COPY / BASE, language)


def _source(course: Path) -> AbstractContextManager[Path]:
    """The folder with the course in the language of the copy."""
    return languages.source_in(course / SOURCE, languages.chosen(course / COPY / BASE))


def _files(folder: Path) -> Iterator[Path]:
    ignored = {*IGNORED, *languages.known(folder)}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ignored.isdisjoint(path.relative_to(folder).parts):
            yield path


def _former(source: Path, relative: Path) -> Iterator[Path]:
    """Where a file of the course was before; what the course has there now is another one."""
    for name in former(relative.name):
        old = relative.with_name(name)
        if not (source / old).exists():
            yield old


def _moved(copy: Path, old: Path, new: Path) -> Path | None:
    """Move the student's file from its former name, with what is remembered of it; returns where
    to, or None if there was none. What stands under the new name stays: the old is put beside it.
    """
    own, to, folder = copy / old, copy / new, copy / BASE
    is_there, is_free = _exists(own), not _exists(to)
    aside = whole_file.put_aside(own, to) if is_there and not is_free else None
    if is_there and is_free:
        own.rename(to)
    if is_free and not (folder / new).exists():
        for remembered in (folder, folder / EARLIER):
            if (remembered / old).exists() and not (remembered / new).exists():
                (remembered / old).rename(remembered / new)
    if not is_there:
        return None
    return new if aside is None else aside.relative_to(copy)


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _updated(
    file: Path, own: Path, folder: Path, relative: Path
) -> tuple[str, tuple[str, ...]] | None:
    """Bring one file up to date: what has happened and where, or None if nothing."""
    base = folder / relative
    is_new = not base.exists() or base.read_bytes() != file.read_bytes()
    if own.is_symlink() and not own.exists():
        return (ERROR_LINK.format(target=own.readlink()), ()) if is_new else None
    step: tuple[str, tuple[str, ...]] | None = None
    if own.exists() and not own.is_file():
        step = (_exchanged(file, own, "is no file"), ()) if is_new else None
    elif not own.exists():
        if is_new:  # else the student has deleted it
            _fresh(file, own)
            step = "new", ()
    elif file.suffix == ".ipynb" and base.exists():
        if not _is_brought_up(own, file, is_new=is_new, earlier=_earlier(folder, relative)):
            step = _merged(file, own, [*_earlier(folder, relative), base])
    else:
        step = _replaced(file, own, [*_earlier(folder, relative), base], is_new=is_new)
    if is_new:
        _remember(file, folder, relative)
    return step


def _is_brought_up(own: Path, file: Path, *, is_new: bool, earlier: list[Path]) -> bool:
    """Whether the last update has written the notebook, and nobody an old one over it since."""
    try:
        version = json.loads(own.read_bytes())["metadata"].get(VERSION)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return not is_new
    if version is None and not earlier:  # made before copies said their version
        return not is_new
    return version == _version(file)


def _replaced(
    file: Path, own: Path, versions: list[Path], *, is_new: bool
) -> tuple[str, tuple[str, ...]] | None:
    """The new version in place of what the student has not changed, or beside it.

    An editor that was open before an update may have saved an old version since.
    """
    mine, new = own.read_bytes(), file.read_bytes()
    if mine == new:
        return None
    if any(path.exists() and mine == path.read_bytes() for path in versions):
        _copy(file, own)
        return "the new version", ()
    if not is_new:
        return None
    beside = whole_file.unused(whole_file.numbered(NEW, own, before=" "))
    _copy(file, beside)
    return f"you have changed it; the new version is {beside.name}", ()


def _merged(file: Path, own: Path, versions: list[Path]) -> tuple[str, tuple[str, ...]] | None:
    try:
        mine = notebook_file.read(own)
    except notebook_file.UnreadableError as error:
        return _exchanged(file, own, f"could not be read ({error})"), ()
    new = notebook_file.read(file)
    merged = merging.merge(mine, _base_of(mine, versions), new)
    merged.notebook.metadata[VERSION] = _version(file)
    whole_file.write(own, notebook_file.serialised(merged.notebook))
    if not merged.is_other:
        return None
    return f"{merged.taken} cells are new", tuple(merged.both)


def _base_of(mine: NotebookNode, versions: list[Path]) -> NotebookNode:
    """The version that a notebook says it was brought up to; where it says none, the nearest."""
    readable = {}
    for path in versions:
        with suppress(notebook_file.UnreadableError):
            readable[_version(path)] = notebook_file.read(path)
    said = readable.get(str(mine.metadata.get(VERSION)))
    if said is not None:
        return said
    if not readable:  # then everything of the student's is new
        return nbformat.v4.new_notebook()
    return min(readable.values(), key=lambda each: merging.distance(mine, each))


def _version(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _remember(file: Path, folder: Path, relative: Path) -> None:
    """The version that the copy is up to now; files brought up to others may still be open."""
    base = folder / relative
    if base.exists():
        number = len(_earlier(folder, relative))
        _copy(base, folder / EARLIER / relative / f"{number:04}{file.suffix}")
    _copy(file, base)


def _earlier(folder: Path, relative: Path) -> list[Path]:
    return sorted((folder / EARLIER / relative).glob("[0-9]*"))


def _fresh(file: Path, own: Path) -> None:
    """Copy a file of the course; a notebook says which version it is."""
    content = file.read_bytes()
    if file.suffix == ".ipynb":
        notebook = json.loads(content)
        notebook["metadata"][VERSION] = _version(file)
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
        content = f"{text}\n".encode()
    _write(file, own, content)


def _exchanged(file: Path, own: Path, why: str) -> str:
    """Put the student's aside, and the new one in its place."""
    aside = whole_file.put_aside(own)
    _fresh(file, own)
    return f"{why}; it is {aside.name} now"


def _copy(file: Path, to: Path) -> None:
    _write(file, to, file.read_bytes())


def _write(file: Path, to: Path, content: bytes) -> None:
    """Write what came from a file; a new one has its permissions."""
    is_new = not to.exists()
    to.parent.mkdir(parents=True, exist_ok=True)
    whole_file.write_bytes(to, content)
    if is_new:
        shutil.copymode(file, to)
