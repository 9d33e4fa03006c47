"""The names that cells of a notebook read from each other, and what becomes of these when a cell is
run again after later ones.

A slider's picture is drawn anew after the last cell has run. A reader runs any cell again, after
itself and after later ones: a name that it reads has to have the meaning that it had.
"""

import ast
import dis
import re
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from nbformat import NotebookNode

FIGURE = re.compile(r"\bslider_figure\(\s*(\w+)")
IPYTHON = re.compile(r"^(\s*)[%!].*", re.MULTILINE)
ELSEWHERE = re.compile(r"%%(?!emulate_cuda\b)")  # on other ranks, or in another program


class Cell(NamedTuple):
    """A cell's statements, as they were parsed and as they run."""

    tree: ast.Module
    code: CodeType

    @classmethod
    def of(cls, source: str) -> "Cell":
        plain = "" if ELSEWHERE.match(source) else IPYTHON.sub(r"\1pass", source)
        tree = ast.parse(plain)
        return cls(tree, compile(tree, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def binds(self) -> set[str]:
        """The names that it gives a value; a stub is none, until somebody has written it."""
        stored = {i.argval for i in dis.get_instructions(self.code) if i.opname == "STORE_NAME"}
        return stored - {node.name for node in self.tree.body if _is_stub(node)}

    def imports(self) -> set[str]:
        """Those of them whose value is the same wherever they are bound."""
        nodes = [
            node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        return {
            (alias.asname or alias.name).partition(".")[0] for node in nodes for alias in node.names
        }

    def reads(self) -> set[str]:
        """The names that it reads itself, in the functions that it defines not included."""
        own = {i.argval for i in dis.get_instructions(self.code) if i.opname == "LOAD_NAME"}
        unnamed = (code for code in _within(self.code) if code.co_name.startswith("<"))
        return own.union(*map(_globals, unnamed))

    def takes(self) -> set[str]:
        """The names that it reads before it has bound them."""
        bound, taken = set(), self.reads() - self.binds()
        for instruction in dis.get_instructions(self.code):
            if instruction.opname == "STORE_NAME":
                bound.add(instruction.argval)
            elif instruction.opname == "LOAD_NAME" and instruction.argval not in bound:
                taken.add(instruction.argval)
        return taken

    def leaves(self) -> set[str]:
        """The names that only its loops bind: what is left is the value of the last round."""
        loops = [node for node in _at_top(self.tree) if isinstance(node, ast.For)]
        within = set().union(*map(_stored, loops))
        outside = {name.id for name in _stored(self.tree) - within}
        return {name.id for name in within} & self.binds() - outside

    def deletes(self) -> Iterator[str]:
        """What it deletes without having made it."""
        made = {
            ast.unparse(target)
            for node in _at_top(self.tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        for node in _at_top(self.tree):
            if isinstance(node, ast.Delete):
                yield from {ast.unparse(target) for target in node.targets} - made


def bound_anew(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """(function that draws, name that it needs and that a cell after its figure binds)."""
    sources = _sources(notebook)
    cells = [Cell.of(source) for source in sources]
    for number, source in enumerate(sources):
        for function in FIGURE.findall(source):
            later = set().union(*(cell.binds() for cell in cells[number + 1 :]))
            needed = _needs(function, cells[: number + 1])
            yield from ((function, name) for name in sorted(needed & later))


def spoiled_by_a_run(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """(first line of a cell, why it does something else when it is run again at the end)."""
    sources = _sources(notebook)
    cells = [Cell.of(source) for source in sources]
    bound = [cell.binds() - cell.imports() for cell in cells]
    for number, (source, cell) in enumerate(zip(sources, cells, strict=True)):
        line = source.partition("\n")[0]
        taken, here = cell.takes(), cell.binds()
        yield from ((line, f"binds {name}, which it reads") for name in sorted(taken & here))
        yield from ((line, f"deletes {what}") for what in cell.deletes())
        before, after = (set().union(*part) for part in (bound[:number], bound[number + 1 :]))
        needed = set().union(*(_needs(name, cells[: number + 1]) for name in cell.reads()))
        others = sorted((needed - (here - taken)) & before & after)
        yield from ((line, f"reads {name}, which a later cell binds anew") for name in others)


def left_by_loops(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """(first line of a cell, name that it reads and that an earlier cell's loop has left)."""
    left: set[str] = set()
    for source in _sources(notebook):
        cell = Cell.of(source)
        yield from ((source.partition("\n")[0], name) for name in sorted(cell.takes() & left))
        left = left - cell.binds() | cell.leaves()


def bound_twice(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """(first line of a cell, name that it reads and that more than one cell before it binds): when
    the first of those is run again, the cell reads the other value."""
    cells = []
    for source in _sources(notebook):
        cell = Cell.of(source)
        for name in sorted(cell.takes()):
            if sum(name in before.binds() - before.imports() for before in cells) > 1:
                yield source.partition("\n")[0], name
        cells.append(cell)


def _is_stub(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(body=[*_, ast.Raise(exc=ast.Name(id="NotImplementedError"))]):
            return True
    return False


def _sources(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def _at_top(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run with the cell, and not in a function of it."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            if isinstance(node, ast.stmt):
                yield node
            yield from _at_top(node)


def _stored(tree: ast.AST) -> set[ast.Name]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {name for name in names if isinstance(name.ctx, ast.Store)}


def _needs(function: str, cells: list[Cell]) -> set[str]:
    """The function, what it names, what the functions among those name, and so on."""
    bodies = {code.co_name: code for cell in cells for code in _within(cell.code)}
    needed, todo = set(), [function]
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo += _globals(bodies[name]) if name in bodies else ()
    return needed


def _within(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _globals(code: CodeType) -> set[str]:
    own = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return own.union(*map(_globals, _within(code)))
