"""What stands in cells: which statements give a function its names, and which of them it needs.

All of it is read, nothing is run. Lines are those of Python's grammar, which end in a newline and
in nothing else: a form feed or a line separator within a string does not end one.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

GIVEN = ("torch", "nn", "F", "dist", "math", "par")  # names that every answer has
RUN_HERE = ("time", "capture", "prun", "emulate_cuda")  # magics whose cell runs as any other
OF_TIME = re.compile(r"^(\s*)%time(?:it)?[ \t]+(?=\S)", re.MULTILINE)
FOR_IPYTHON = re.compile(r"^(\s*)[!%].*$", re.MULTILINE)
WORD = re.compile(r"\w+")
# Methods that change what a name stands for.
CHANGING = ("add", "append", "extend", "insert", "register", "setdefault", "update")
PLAIN = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign,
    ast.AnnAssign,
)  # fmt: skip
TEXT_MAGIC = "begins with %%{magic}, which is not run here"
TEXT_SYNTAX = "is no Python: {error}"
TEXT_DEEP = "is nested too deeply to be read"


class UnreadableError(ValueError):
    """What is no Python; the text goes after "cell 3 "."""


@dataclass(frozen=True, eq=False)
class Statement:
    """One of a cell, as it stands there: its lines, the first of which has the number `line`.

    `fresh` are names that it gives whatever they were before, `changed` are others that it gives or
    changes, `used` those that it needs.
    """

    cell: int
    line: int
    lines: tuple[str, ...]
    fresh: frozenset[str]
    changed: frozenset[str]
    used: frozenset[str]
    stars: bool  # it imports all names of a module

    @property
    def gives(self) -> frozenset[str]:
        """All names that it gives or changes."""
        return self.fresh | self.changed


def lines_of(text: str) -> list[str]:
    """The lines of a text, without their ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def parsed(text: str) -> ast.Module:
    """The statements of a text. Raises UnreadableError."""
    try:
        return ast.parse("\n".join(lines_of(text)))
    except (SyntaxError, ValueError) as error:
        raise UnreadableError(TEXT_SYNTAX.format(error=error)) from None
    except (RecursionError, MemoryError):
        raise UnreadableError(TEXT_DEEP) from None


def python_of(text: str) -> str:
    """A cell as Python, with the same lines, and what is for IPython as calls of it.

    Raises UnreadableError for a cell of another language, and for no Python.
    """
    lines = lines_of(text)
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        magic = lines[first][2:].partition(" ")[0].strip()
        if magic not in RUN_HERE:
            raise UnreadableError(TEXT_MAGIC.format(magic=magic))
        lines[first] = ""
    whole = "\n".join(lines)
    try:
        parsed(whole)
    except UnreadableError:
        whole = _without_magics(OF_TIME.sub(r"\1", whole))
        parsed(whole)
    return whole


def _without_magics(text: str) -> str:
    """What IPython makes of a cell, if that has the same lines."""
    from IPython.core.inputtransformer2 import TransformerManager

    start = len(text) - len(text.lstrip("\n"))
    try:
        made = "\n" * start + TransformerManager().transform_cell(text[start:])
    except Exception:  # it meets students' text, and has its own ways to stumble
        made = ""
    same = made.rstrip("\n").count("\n") == text.rstrip("\n").count("\n")
    return made if same else FOR_IPYTHON.sub(r"\1pass", text)


def statements(cell: int, text: str) -> list[Statement]:
    """Those of a cell of Python. Raises UnreadableError."""
    lines = lines_of(text)
    try:
        found = [_statement(cell, node, lines) for node in parsed(text).body]
    except (RecursionError, MemoryError):
        raise UnreadableError(TEXT_DEEP) from None
    # A call of a function that sets globals sets them.
    setters = {name: each.changed for each in found for name in each.fresh if each.changed}
    return [_as_setter(each, setters) for each in found]


def needed(cells: Mapping[int, Sequence[Statement]], cell: int, name: str) -> list[Statement]:
    """What gives `name` in a cell, and all that this needs, in their order."""
    every = [each for number in sorted(cells) for each in cells[number]]
    chosen: set[Statement] = set()
    wanted, asked = [(cell, name)], set()
    while wanted:
        asking, what = wanted.pop()
        if (asking, what) in asked:
            continue
        asked.add((asking, what))
        for each in _givers(every, asking, what):
            if each not in chosen:
                chosen.add(each)
                wanted += [(each.cell, used) for used in each.used]
    return [each for each in every if each in chosen]


def blanked(text: str, kept: Iterable[Statement]) -> str:
    """A cell with all but some of its statements left blank: what is kept stays on its lines."""
    lines = [""] * len(lines_of(text))
    for each in kept:
        for number, line in enumerate(each.lines, each.line - 1):
            lines[number] = f"{lines[number]}; {line}" if lines[number] else line
    return "\n".join(lines)


def _givers(every: Sequence[Statement], asking: int, name: str) -> list[Statement]:
    """In the nearest cell above that gives a name, else the last; and above, what that changes."""
    homes = sorted({each.cell for each in every if name in each.gives})
    if not homes:
        known = name in GIVEN or hasattr(builtins, name)
        return [] if known else [each for each in every if each.stars]
    above = [home for home in homes if home <= asking] or homes[-1:]
    found: list[Statement] = []
    for home in reversed(above):
        here = [each for each in every if each.cell == home and name in each.gives]
        found += here
        if any(name in each.fresh for each in here):
            break
    return found


def _statement(cell: int, node: ast.stmt, lines: Sequence[str]) -> Statement:
    first, own = _own_lines(node, lines)
    given, at_once, used, elsewhere = _names("\n".join(own))
    bases = set(_changed_by(node))
    fresh = given - at_once if isinstance(node, PLAIN) else set()
    return Statement(
        cell,
        first,
        own,
        frozenset(fresh),
        frozenset(bases | elsewhere | given - fresh),
        frozenset(at_once | used | bases),
        isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names),
    )


def _own_lines(node: ast.stmt, lines: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """The number of the first line, and the lines: of one that is shared, the statement's part."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    last = node.end_lineno or first
    own = [line.encode() for line in lines[first - 1 : last]]
    own[-1] = own[-1][: node.end_col_offset]
    if first == node.lineno:
        own[0] = own[0][node.col_offset :]
    return first, tuple(line.decode() for line in own)


def _names(text: str) -> tuple[set[str], set[str], set[str], set[str]]:
    """What a statement gives the cell, needs at once, needs when its functions are called, and
    gives then."""
    given: set[str] = set()
    at_once: set[str] = set()
    used: set[str] = set()
    elsewhere: set[str] = set()
    try:
        table = symtable.symtable(text, "<cell>", "exec")
    except (SyntaxError, ValueError):  # what only the compiler refuses: it will say so
        return given, at_once, used, elsewhere
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            given.add(symbol.get_name())
        if symbol.is_referenced():
            at_once.add(symbol.get_name())
    for symbol in _of_inner(table):
        if symbol.is_global() and symbol.is_referenced():
            used.add(symbol.get_name())
        if symbol.is_declared_global() and symbol.is_assigned():
            elsewhere.add(symbol.get_name())
    return given, at_once, used, elsewhere - given


def _of_inner(table: symtable.SymbolTable) -> Iterator[symtable.Symbol]:
    for inner in table.get_children():
        yield from inner.get_symbols()
        yield from _of_inner(inner)


def _changed_by(node: ast.stmt) -> Iterator[str]:
    """Names of which a part is set or deleted, or of which a method is called that changes it."""
    for inner in ast.walk(node):
        match inner:
            case (
                ast.Subscript(ctx=ast.Store() | ast.Del())
                | ast.Attribute(ctx=ast.Store() | ast.Del())
            ):
                yield from _base(inner)
    called = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
    for each in called:
        method = each.func if isinstance(each, ast.Call) else each
        if isinstance(method, ast.Attribute) and method.attr in CHANGING:
            yield from _base(method.value)


def _base(node: ast.AST) -> Iterator[str]:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _as_setter(each: Statement, setters: Mapping[str, frozenset[str]]) -> Statement:
    if each.fresh or each.changed:
        return each
    sets = frozenset(name for used in each.used for name in setters.get(used, ()))
    return Statement(each.cell, each.line, each.lines, each.fresh, sets, each.used, each.stars)
