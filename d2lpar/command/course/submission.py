"""What a student hands in, and which parts of it answer a question.

Only the function that was asked for is taken, with the imports, functions, classes and constants
that it uses, and that these use, from whichever cells they stand in. The rest of a notebook may
train for hours, plot or print: it says nothing about the answer, so it is not run.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...checks.challenges import scores
from ...checks.grader.source import defines, is_stub, names_used
from . import notebook_file, otter_format
from .assignment import METADATA

MAGIC_LINE = re.compile(r"^(\s*)[!%].*$", flags=re.MULTILINE)
READABLE = (".ipynb", ".py", ".json")
TEXT_UNREADABLE = "the file cannot be read: {error}"
TEXT_MISSING = "no cell defines a function {name}"
TEXT_SYNTAX = "cell {number} is no Python: {error}"
LINE, OF_CELL = "line {line}", " of cell {number}"


@dataclass(frozen=True)
class Answer:
    """The text that is run for a question and the numbers of its cells, or what is wrong.

    `places` say for each line of the text where the student finds it: "line 3 of cell 8".
    """

    text: str = ""
    cells: tuple[int, ...] = ()
    problem: str = ""
    places: tuple[str, ...] = ()


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
        if path.suffix == ".ipynb":
            notebook = notebook_file.read(path)
            cells = enumerate(notebook.cells, start=1)
            code = {number: cell.source for number, cell in cells if cell.cell_type == "code"}
            lesson = notebook.metadata.get(METADATA)
            return Submission(path, code, lesson=lesson if isinstance(lesson, str) else None)
        if path.suffix == ".json":
            entries = scores.read(path)
            apart = {name: str(entry.get("source", "")) for name, entry in entries.items()}
            return Submission(path, apart=apart, lesson="09")
        with tokenize.open(path) as program:  # in the encoding that the file says it has
            return Submission(path, {1: program.read()})
    except Exception as error:  # a student's file may hold anything, and others come after it
        return Submission(path, problem=TEXT_UNREADABLE.format(error=_first_line(error)))


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
    """What else lies in the folders, and might be what somebody has handed in."""
    inside = [file for path in paths if path.is_dir() for file in sorted(_in_folder(path))]
    return [file for file in inside if not _is_submission(file) and not _is_otters(file)]


def _in_folder(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


def _is_submission(path: Path) -> bool:
    """Whether it is of a kind that is graded. What a link leads to is nobody's work."""
    if path.is_symlink() or _is_otters(path):
        return False
    return path.suffix in (".ipynb", ".py") or path.name == scores.FILE


def _is_otters(path: Path) -> bool:
    """Whether it is one of the tests that were handed out with the homework."""
    if path.suffix != ".py":
        return False
    try:
        return otter_format.MARK.encode() in path.read_bytes().splitlines()
    except OSError:  # `read` will say why
        return False


def _picked(cells: Mapping[int, str], name: str) -> Answer:
    """The last definition of a function that is no stub, and what it needs."""
    parsed = {number: tree for number, text in cells.items() if (tree := _parsed(text)) is not None}
    homes = [number for number, tree in parsed.items() if _definitions(tree, name)]
    if not homes:
        return Answer(problem=_why_missing(cells, name))
    written = [number for number in homes if not is_stub(_clean(cells[number]), name)]
    used: dict[int, set[ast.stmt]] = {}
    wanted = [((written or homes)[-1], name)]
    while wanted:
        number, what = wanted.pop()
        for node in _definitions(parsed[number], what):
            if node not in used.setdefault(number, set()):
                used[number].add(node)
                for each in names_used(node):
                    home = _home_of(each, number, parsed)
                    wanted += [] if home is None else [(home, each)]
    return _joined(cells, used)


def _home_of(name: str, asking: int, parsed: Mapping[int, ast.Module]) -> int | None:
    """The cell that a name comes from: the asking one, else the nearest above, else the last."""
    homes = [number for number, tree in parsed.items() if _definitions(tree, name)]
    above = [number for number in homes if number <= asking]
    return max(above or homes, default=None)


def _definitions(tree: ast.Module, name: str) -> list[ast.stmt]:
    return [node for node in tree.body if name in defines(node)]


def _joined(cells: Mapping[int, str], used: Mapping[int, set[ast.stmt]]) -> Answer:
    """The text of what is used, and where each of its lines stands."""
    parts, places = [], []
    for number in sorted(used):
        lines = _clean(cells[number]).splitlines()
        for node in sorted(used[number], key=lambda node: node.lineno):
            decorators = getattr(node, "decorator_list", [])
            start = min([node.lineno, *(each.lineno for each in decorators)])
            of_node = range(start, (node.end_lineno or start) + 1)
            parts += [*(lines[line - 1] for line in of_node), ""]
            of_cell = OF_CELL.format(number=number)
            places += [LINE.format(line=line) + of_cell for line in [*of_node, of_node[-1]]]
    return Answer("\n".join(parts), tuple(sorted(used)), places=tuple(places))


def _why_missing(cells: Mapping[int, str], name: str) -> str:
    for number, text in cells.items():
        if f"def {name}(" in text:
            try:
                ast.parse(_clean(text))
            except (SyntaxError, ValueError) as error:
                return TEXT_SYNTAX.format(number=number, error=error)
    return TEXT_MISSING.format(name=name)


def _parsed(text: str) -> ast.Module | None:
    """The statements of a cell; None for what is no Python."""
    try:
        return ast.parse(_clean(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _clean(text: str) -> str:
    """A cell without lines for IPython; nothing of one that is for another interpreter."""
    return "" if text.lstrip().startswith("%%") else MAGIC_LINE.sub(r"\1pass", text)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
