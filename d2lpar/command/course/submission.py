"""What a student hands in, and which parts of it answer a question.

Only the function that was asked for is taken, with the statements that give it what it uses, and
these, from whichever cells they stand in. The rest of a notebook may train for hours, plot or
print: it says nothing about the answer, so it is not run. What cannot be read is named.
"""

from __future__ import annotations

import io
import os
import stat
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...checks.challenges import scores
from ...checks.grader import cells as reading
from ...checks.grader.cells import Statement, UnreadableError
from ...checks.grader.source import is_stub
from . import notebook_file, otter_format
from .assignment import METADATA

READABLE = (".ipynb", ".py", ".json")
MOST_BYTES = 100_000_000  # of a file: a notebook with its outputs
TEXT_UNREADABLE = "the file cannot be read: {error}"
TEXT_MISSING = "no cell defines a function {name}"
TEXT_CELL = "cell {number} {why}"
LINE, OF_CELL = "line {line}", " of cell {number}"
NOBODYS = (".ipynb_checkpoints", "__pycache__", ".DS_Store")  # what programs leave there
KINDS = (  # what is no file, as it is named
    (stat.S_ISLNK, "link"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISBLK, "device"),
    (stat.S_ISCHR, "device"),
)


@dataclass(frozen=True)
class Answer:
    """The text that is run for a question and the numbers of its cells, or what is wrong.

    `places` say for each line of the text where the student finds it: "line 3 of cell 8". `unread`
    names cells that could not be read, and may be what it lacks.
    """

    text: str = ""
    cells: tuple[int, ...] = ()
    problem: str = ""
    places: tuple[str, ...] = ()
    unread: str = ""


@dataclass(frozen=True)
class Submission:
    """A file that was handed in: its code cells by number from 1, as the file shows them.

    A file of scores has `apart` instead: the source of each answer. `problem` says why a file
    cannot be read. `lesson` is the homework that a notebook says it is.
    """

    path: Path
    cells: Mapping[int, str] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    lesson: str | None = None
    problem: str = ""

    def answer(self, name: str) -> Answer:
        """The part of it that answers a question."""
        if self.problem:
            return Answer(problem=self.problem)
        if self.path.suffix == ".json":
            text = self.apart.get(name)
            return Answer(text) if text else Answer(problem=TEXT_MISSING.format(name=name))
        answer = _picked(self.cells, name)
        if self.path.suffix == ".py":  # it has no cells
            places = tuple(place.removesuffix(OF_CELL.format(number=1)) for place in answer.places)
            return replace(answer, cells=(), places=places)
        return answer


def read(path: Path) -> Submission:
    """Read a notebook, a program or a file of scores; one that cannot be read says so."""
    try:
        if not path.is_file():
            raise ValueError("it is no file")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        if path.suffix == ".ipynb":
            notebook = notebook_file.read(path)
            lesson = notebook.metadata.get(METADATA)
            code = notebook_file.code_by_number(notebook)
            return Submission(path, code, lesson=lesson if isinstance(lesson, str) else None)
        if path.suffix == ".json":
            entries = scores.read(path)
            apart = {name: str(entry.get("source", "")) for name, entry in entries.items()}
            return Submission(path, apart=apart, lesson="10")
        return Submission(path, {1: _program(path.read_bytes())})
    except Exception as error:  # a student's file may hold anything, and others come after it
        return Submission(path, problem=TEXT_UNREADABLE.format(error=_first_line(error)))


def _program(content: bytes) -> str:
    """The text of a program, in the encoding that it says it has, or that its first bytes say."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding)


def files(paths: list[Path]) -> list[Path]:
    """The submissions in folders and among files. Raises ValueError for what is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in _in_folder(path) if _is_submission(file))
        elif path.is_file() and path.suffix in READABLE:
            found.append(path)
        else:
            raise ValueError(f"{path} is neither a folder nor a file {' or '.join(READABLE)}")
    if not found:
        raise ValueError(f"no notebook, .py or {scores.FILE} in {', '.join(map(str, paths))}")
    return list(dict.fromkeys(found))


def left_out(paths: list[Path]) -> list[Path]:
    """What else lies in the folders, and might be what somebody has handed in.

    Of a folder that is not looked into, hidden or behind a link, the folder alone.
    """
    found: list[Path] = []
    for path in (path for path in paths if path.is_dir()):
        for each in _everything(path):
            ours = _is_plain(each) and (_is_submission(each) or _is_otters(each))
            if not ours or _is_hidden(each):
                found.append(each)
    return list(dict.fromkeys(found))


def kind_of(path: Path) -> str:
    """What it is, if it is neither a file nor a folder: "link", "pipe"; "hidden"; else ""."""
    if _is_hidden(path):
        return "hidden"
    try:
        mode = path.lstat().st_mode
    except OSError:
        return "unreadable"
    return next((name for test, name in KINDS if test(mode)), "")


def _everything(folder: Path) -> Iterator[Path]:
    """All that lies in a folder and is no folder, and folders that are not looked into."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:  # not ours to read
        yield folder
        return
    for path in entries:
        if path.name in NOBODYS:
            continue
        if path.is_dir() and not path.is_symlink() and not _is_hidden(path):
            yield from _everything(path)
        else:
            yield path


def _in_folder(folder: Path) -> Iterator[Path]:
    for path in _everything(folder):
        if not _is_hidden(path) and _is_plain(path):
            yield path


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _is_plain(path: Path) -> bool:
    """Whether it is a file, and no link to one. What a link leads to is nobody's work."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_submission(path: Path) -> bool:
    """Whether it is of a kind that is graded."""
    graded = path.suffix in (".ipynb", ".py") or path.name == scores.FILE
    return graded and not _is_otters(path)


def _is_otters(path: Path) -> bool:
    """Whether it is one of the tests that were handed out with the homework."""
    if path.suffix != ".py":
        return False
    try:
        return otter_format.MARK.encode() in path.read_bytes().splitlines()
    except OSError:  # `read` will say why
        return False


def _picked(texts: Mapping[int, str], name: str) -> Answer:
    """The last definition of a function that is no stub, and what it needs."""
    known: dict[int, list[Statement]] = {}
    problems: dict[int, str] = {}
    python: dict[int, str] = {}
    for number, text in texts.items():
        try:
            python[number] = reading.python_of(text)
            known[number] = reading.statements(number, python[number])
        except UnreadableError as error:
            problems[number] = TEXT_CELL.format(number=number, why=error)
    homes = [number for number, own in known.items() if any(name in each.gives for each in own)]
    if not homes:
        told = [why for number, why in problems.items() if f"def {name}(" in texts[number]]
        return Answer(problem=(told or [TEXT_MISSING.format(name=name)])[-1])
    written = [number for number in homes if not is_stub(python[number], name)]
    kept = reading.needed(known, (written or homes)[-1], name)
    return _joined(kept, _unread(problems, texts, kept, known))


def _unread(
    problems: Mapping[int, str],
    texts: Mapping[int, str],
    kept: Sequence[Statement],
    known: Mapping[int, Sequence[Statement]],
) -> str:
    """What is to be said of cells that could not be read, if the answer may need one of them."""
    given = {name for own in known.values() for each in own for name in each.gives}
    lacking = {name for each in kept for name in each.used} - given
    told = [
        why
        for number, why in problems.items()
        if any(word in lacking for word in reading.WORD.findall(texts[number]))
    ]
    return "; ".join(told)


def _joined(kept: Sequence[Statement], unread: str) -> Answer:
    """The text of what is used, and where each of its lines stands."""
    parts: list[str] = []
    places: list[str] = []
    for each in kept:
        numbers = range(each.line, each.line + len(each.lines))
        parts += [*each.lines, ""]
        of_cell = OF_CELL.format(number=each.cell)
        places += [LINE.format(line=line) + of_cell for line in [*numbers, numbers[-1]]]
    numbers_of_cells = tuple(sorted({each.cell for each in kept}))
    return Answer("\n".join(parts), numbers_of_cells, places=tuple(places), unread=unread)


def _first_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
