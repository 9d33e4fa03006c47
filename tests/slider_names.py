"""The names of a notebook that a slider's picture reads each time it is drawn.

A slider is moved after the last cell has run: a name that a later cell binds anew then has another
value, and the picture is wrong.
"""

import ast
import dis
import re
from collections.abc import Iterator
from types import CodeType

from nbformat import NotebookNode

FIGURE = re.compile(r"\bslider_figure\(\s*(\w+)")
IPYTHON = re.compile(r"^(\s*)[%!].*", re.MULTILINE)


def bound_anew(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """(function that draws, name that it needs and that a cell after its figure binds)."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    cells = [_compiled(source) for source in sources]
    for number, source in enumerate(sources):
        for function in FIGURE.findall(source):
            later = set().union(*map(_binds, cells[number + 1 :]))
            needed = _needs(function, cells[: number + 1])
            yield from ((function, name) for name in sorted(needed & later))


def _compiled(source: str) -> CodeType:
    plain = IPYTHON.sub(r"\1pass", source)
    return compile(plain, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _binds(cell: CodeType) -> set[str]:
    return {i.argval for i in dis.get_instructions(cell) if i.opname == "STORE_NAME"}


def _needs(function: str, cells: list[CodeType]) -> set[str]:
    """The function, what it names, what the functions among those name, and so on."""
    bodies = {code.co_name: code for cell in cells for code in _within(cell)}
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
