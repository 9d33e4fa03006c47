"""What of a student's cell is graded: its imports, functions and constants; and what it may use.

The engine runs in the same process as the answer, so what could reach the clock, the machine or
the grader from there is refused before it runs. `tampering` looks afterwards.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import symtable
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..verdict import Refused

FILENAME = "<your cell>"
REFUSED = "refused"  # the status of an answer that is not run, or does not count
MODULES = (
    "bisect", "collections", "contextlib", "dataclasses", "fractions", "functools", "heapq",
    "itertools", "math", "random", "statistics", "torch", "typing",
)  # fmt: skip
OF_COURSE = "d2lpar"
OF_PAR = (
    "collectives", "launch", "machines", "models", "pipeline", "planner", "scaling", "timing",
    "Timer",
)  # fmt: skip
WRITABLE = ("data", "grad", "requires_grad")  # attributes that an answer may set
PRIVATE = ("__init__", "_foreach_add_", "_foreach_copy_", "_foreach_mul_", "_foreach_div_")
# Methods that an answer may define. Not `__eq__`: what equals everything is right everywhere.
METHODS = (
    "__call__", "__enter__", "__exit__", "__getitem__", "__init__", "__iter__", "__len__",
    "__next__", "__post_init__", "__repr__",
)  # fmt: skip
SPECIAL_NAME = re.compile(r"__\w+__")
BUILTINS = (
    "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals",
    "input", "locals", "open", "setattr", "vars",
)  # fmt: skip
ATTRIBUTES = (
    "builtins", "ctypes", "gc", "hub", "importlib", "inspect", "library", "modules",
    "load", "multiprocessing", "os", "save", "serialization", "subprocess", "sys",
)  # fmt: skip

TEXT_SYNTAX = "the cell is no Python: {error}"
TEXT_STORE = "changes {what}: an answer sets attributes of no other thing than {allowed}"
TEXT_PRIVATE = "uses {what}, a private name"
TEXT_BUILTIN = "calls {what}, which could change the grader"
TEXT_ATTRIBUTE = "uses {what}, by which it could reach the grader"
TEXT_IMPORT = "imports {what}: an answer may import torch and {allowed}"
TEXT_PAR = "uses {what}: of par an answer may use {allowed}; machine and clock are the grader's"
TEXT_ALIAS = "hands on par itself: write par.name"
TEXT_METHOD = "defines {what}, by which a wrong value could pass for a right one"
TEXT_GLOBAL = "changes the global {what}"
ERROR_NO_SOURCE = (
    "the source of {name} is nowhere to be found: write the function in a cell of the notebook"
)


@dataclass(frozen=True)
class Place:
    """A line of the student's, and what is to be said of it."""

    line: int
    text: str


def source_of(function: Callable) -> str:
    """The cell, or file, in which a function stands. Raises ValueError if there is none."""
    code = inspect.unwrap(function).__code__
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise ValueError(ERROR_NO_SOURCE.format(name=function.__name__))
    return "".join(lines)


def is_stub(source: str, name: str) -> bool:
    """Whether the function still ends in `raise NotImplementedError`."""
    for node in _parsed(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            match node.body[-1]:
                case ast.Raise(
                    exc=ast.Name(id="NotImplementedError")
                    | ast.Call(func=ast.Name(id="NotImplementedError"))
                ):
                    return True
    return False


def graded_part(source: str, name: str) -> ast.Module:
    """The function, and the imports, functions, classes and constants of its cell that it uses."""
    tree = _parsed(source)
    defined = {each: node for node in tree.body for each in defines(node)}
    wanted, used = [name], set()
    while wanted:
        node = defined.get(wanted.pop())
        if node is not None and node not in used:
            used.add(node)
            wanted += names_used(node)
    tree.body = [node for node in tree.body if node in used]
    return tree


def names_used(node: ast.stmt) -> list[str]:
    """The names that a statement of a cell takes from the notebook: not those of its own."""
    return sorted(_globals_of(symtable.symtable(ast.unparse(node), FILENAME, "exec")))


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    of_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (of_module or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _globals_of(inner)


def defines(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a cell gives to the notebook."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            for alias in names:
                yield (alias.asname or alias.name).split(".")[0]
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def check(tree: ast.Module, refuses: Mapping[str, str], modules: tuple[str, ...] = MODULES) -> None:
    """Raise `Refused` for the first line that could reach the grader, or avoids the puzzle."""
    courses = {"par"} | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == OF_COURSE
    }
    places = [place for node in ast.walk(tree) for place in _wrong(node, courses, refuses, modules)]
    places += [*_par_alone(tree, courses)]
    if places:
        first = min(places, key=lambda place: place.line)
        raise Refused(f"line {first.line} {first.text}")


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source, FILENAME)
    except SyntaxError as error:
        raise Refused(TEXT_SYNTAX.format(error=error)) from None


def _wrong(
    node: ast.AST, courses: set[str], refuses: Mapping[str, str], modules: tuple[str, ...]
) -> Iterator[Place]:
    match node:
        case ast.FunctionDef(name=name) if SPECIAL_NAME.fullmatch(name) and name not in METHODS:
            yield Place(node.lineno, TEXT_METHOD.format(what=name))
        case ast.Constant(value=str(text)) if SPECIAL_NAME.fullmatch(text):
            yield Place(node.lineno, TEXT_METHOD.format(what=text))
        case ast.Import(names=names):
            for alias in names:
                if alias.name != OF_COURSE:
                    yield from _import(node.lineno, alias.name, modules)
        case ast.ImportFrom(module=module, names=names):
            yield from _import(node.lineno, module or "", modules)
            for alias in names:
                yield from _name(node.lineno, alias.name, f"{module}.{alias.name}", refuses)
        case ast.Attribute(attr=attr, ctx=ctx):
            what = ast.unparse(node)
            yield from _name(node.lineno, attr, what, refuses)
            match node.value:
                case ast.Name(id=name) if name in courses and attr not in OF_PAR:
                    allowed = ", ".join(OF_PAR)
                    yield Place(node.lineno, TEXT_PAR.format(what=what, allowed=allowed))
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not isinstance(ctx, ast.Load) and attr not in WRITABLE and not own:
                allowed = ", ".join(f".{name}" for name in WRITABLE)
                yield Place(node.lineno, TEXT_STORE.format(what=what, allowed=allowed))
        case ast.Name(id=name):
            if name in BUILTINS or (name.startswith("__") and name.endswith("__")):
                yield Place(node.lineno, TEXT_BUILTIN.format(what=name))
            if name in courses and not isinstance(node.ctx, ast.Load):
                yield Place(node.lineno, TEXT_ALIAS)
        case ast.Global(names=names):
            yield Place(node.lineno, TEXT_GLOBAL.format(what=", ".join(names)))


def _import(line: int, name: str, modules: tuple[str, ...]) -> Iterator[Place]:
    root, *rest = name.split(".")
    if root not in modules or any(part in ATTRIBUTES or (part.startswith("_")) for part in rest):
        allowed = ", ".join(module for module in modules if module != "torch")
        yield Place(line, TEXT_IMPORT.format(what=name, allowed=allowed))


def _name(line: int, attr: str, what: str, refuses: Mapping[str, str]) -> Iterator[Place]:
    if attr in refuses:
        yield Place(line, f"uses {what}: {refuses[attr]}")
    elif attr in ATTRIBUTES:
        yield Place(line, TEXT_ATTRIBUTE.format(what=what))
    elif attr.startswith("_") and attr not in PRIVATE:
        yield Place(line, TEXT_PRIVATE.format(what=what))


def _par_alone(tree: ast.Module, courses: set[str]) -> Iterator[Place]:
    """Uses of par other than `par.name`."""
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in courses and id(node) not in owners:
            yield Place(node.lineno, TEXT_ALIAS)
