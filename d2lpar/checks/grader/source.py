"""What of a student's cell is graded, and what it may not use where the simulated clock decides.

An answer runs in a process of its own, which can do nothing but compute, so nothing here protects
anybody's files, points or processes. But the *clock* that a puzzle reads runs in that process, too,
with the engine: what could reach it or the machine is refused by its name, before it runs, as far
as names tell. The judge believes no time that the machine does not allow.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..verdict import Refused
from . import cells

REFUSED = "refused"  # the status of an answer that is not run, or does not count
MODULES = (
    "bisect", "collections", "contextlib", "copy", "dataclasses", "fractions", "functools", "heapq",
    "itertools", "math", "operator", "random", "statistics", "time", "torch", "typing",
)  # fmt: skip
OF_COURSE = "d2lpar"
OF_PAR = (
    "collectives", "launch", "machines", "models", "pipeline", "planner", "scaling", "timing",
    "Timer",
)  # fmt: skip
WRITABLE = ("data", "grad", "requires_grad")  # attributes that an answer may set
PRIVATE = ("__init__", "_foreach_add_", "_foreach_copy_", "_foreach_mul_", "_foreach_div_")
BUILTINS = (
    "__import__", "compile", "delattr", "eval", "exec", "getattr", "globals", "locals", "setattr",
    "vars",
)  # fmt: skip
ATTRIBUTES = (
    "attrgetter", "get_type_hints", "methodcaller",  # by them a string becomes an attribute
    "builtins", "ctypes", "gc", "hub", "importlib", "inspect", "library", "modules",
    "load", "multiprocessing", "os", "serialization", "subprocess", "sys",
)  # fmt: skip

TEXT_LINE = "line {line} {what}"
TEXT_CELL = "the cell {why}"
TEXT_STORE = "changes {what}: an answer sets attributes of no other thing than {allowed}"
TEXT_PRIVATE = "uses {what}, a private name"
TEXT_BUILTIN = "calls {what}, which could change the clock"
TEXT_ATTRIBUTE = "uses {what}, by which it could reach the clock"
TEXT_IMPORT = "imports {what}: an answer may import torch and {allowed}"
TEXT_PAR = "uses {what}: of par an answer may use {allowed}; machine and clock are the grader's"
TEXT_PATTERN = "reads attributes by a pattern: write them out"
TEXT_ALIAS = "hands on par itself: write par.name"
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


def parsed(text: str) -> ast.Module:
    """The statements of a text. Raises `Refused` for what is no Python."""
    try:
        return cells.parsed(text)
    except cells.UnreadableError as error:
        raise Refused(TEXT_CELL.format(why=error)) from None


def is_stub(text: str, name: str) -> bool:
    """Whether the function still ends in `raise NotImplementedError`. Raises `Refused`."""
    for node in parsed(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            match node.body[-1]:
                case ast.Raise(
                    exc=ast.Name(id="NotImplementedError")
                    | ast.Call(func=ast.Name(id="NotImplementedError"))
                ):
                    return True
    return False


def graded_part(text: str, name: str) -> str:
    """The function, and the statements of its cell that give what it needs; else blank lines.

    Raises `Refused` for what is no Python.
    """
    try:
        own = cells.statements(1, text)
    except cells.UnreadableError as error:
        raise Refused(TEXT_CELL.format(why=error)) from None
    return cells.blanked(text, cells.needed({1: own}, 1, name))


def check(tree: ast.Module, refuses: Mapping[str, str], *, closed: bool) -> None:
    """Raise `Refused` for the first line that avoids the puzzle, or, if more than plain names are
    `closed` to it, could reach the clock or what is refused."""
    courses = {"par"} | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == OF_COURSE
    }
    places = [place for node in ast.walk(tree) for place in _avoids(node, refuses)]
    if closed:
        places += [place for node in ast.walk(tree) for place in _reaches(node, courses)]
        places += [*_par_alone(tree, courses)]
    if places:
        first = min(places, key=lambda place: place.line)
        raise Refused(TEXT_LINE.format(line=first.line, what=first.text))


def _avoids(node: ast.AST, refuses: Mapping[str, str]) -> Iterator[Place]:
    match node:
        case ast.Attribute(attr=name) | ast.Constant(value=str(name)) if name in refuses:
            what = _told(node) if isinstance(node, ast.Attribute) else repr(name)
            yield Place(node.lineno, f"uses {what}: {refuses[name]}")
        case ast.ImportFrom(module=module, names=names):
            for alias in names:
                if alias.name in refuses:
                    told = f"uses {module}.{alias.name}: {refuses[alias.name]}"
                    yield Place(node.lineno, told)


def _reaches(node: ast.AST, courses: set[str]) -> Iterator[Place]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                if alias.name != OF_COURSE:
                    yield from _import(node.lineno, alias.name)
        case ast.ImportFrom(module=module, names=names):
            yield from _import(node.lineno, module or "")
            for alias in names:
                yield from _name(node.lineno, alias.name, f"{module}.{alias.name}")
        case ast.Attribute(attr=attr, ctx=ctx):
            what = _told(node)
            yield from _name(node.lineno, attr, what)
            match node.value:
                case ast.Name(id=name) if name in courses and attr not in OF_PAR:
                    allowed = ", ".join(OF_PAR)
                    yield Place(node.lineno, TEXT_PAR.format(what=what, allowed=allowed))
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not isinstance(ctx, ast.Load) and attr not in WRITABLE and not own:
                allowed = ", ".join(f".{name}" for name in WRITABLE)
                yield Place(node.lineno, TEXT_STORE.format(what=what, allowed=allowed))
        case ast.MatchClass(kwd_attrs=[_, *_]):
            yield Place(node.lineno, TEXT_PATTERN)
        case ast.Name(id=name):
            if name in BUILTINS or (name.startswith("__") and name.endswith("__")):
                yield Place(node.lineno, TEXT_BUILTIN.format(what=name))
            if name in courses and not isinstance(node.ctx, ast.Load):
                yield Place(node.lineno, TEXT_ALIAS)


def _import(line: int, name: str) -> Iterator[Place]:
    root, *rest = name.split(".")
    if root not in MODULES or any(part in ATTRIBUTES or (part.startswith("_")) for part in rest):
        allowed = ", ".join(module for module in MODULES if module != "torch")
        yield Place(line, TEXT_IMPORT.format(what=name, allowed=allowed))


def _name(line: int, attr: str, what: str) -> Iterator[Place]:
    if attr in ATTRIBUTES:
        yield Place(line, TEXT_ATTRIBUTE.format(what=what))
    elif attr.startswith("_") and attr not in PRIVATE:
        yield Place(line, TEXT_PRIVATE.format(what=what))


def _told(node: ast.Attribute) -> str:
    try:
        return ast.unparse(node)
    except RecursionError:
        return f"….{node.attr}"


def _par_alone(tree: ast.Module, courses: set[str]) -> Iterator[Place]:
    """Uses of par other than `par.name`."""
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in courses and id(node) not in owners:
            yield Place(node.lineno, TEXT_ALIAS)
