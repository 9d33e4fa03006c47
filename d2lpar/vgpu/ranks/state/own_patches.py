"""What a program replaces of modules and classes that its processes share: it counts for one alone.

Most libraries are imported once for all virtual ranks. A program that says, on each rank,
`builtins.print = print_of_the_first` would silence the first, too, and a wrapper round a library's
method would be wrapped again by each rank. The program's source says what it replaces; only that is
exchanged when the turn passes, so programs that replace nothing pay nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from ...races.user_code import is_user_file

Path = tuple[str, ...]  # ("torch", "nn", "Linear", "forward")
Attribute = tuple[Any, str]  # a module or a class, and the attribute's name
_NONE = object()
_originals: dict[Attribute, object] = {}  # of what is watched: as it was when no process had begun


def watch(file: str) -> None:
    """Watch what a source file of the program's replaces, of what has been imported so far."""
    for path in _replaced_in(file):
        found = _find(path)
        if found is not None:
            _originals.setdefault(found, _value(found))


class OwnPatches:
    """What one virtual process has replaced: nothing at first, or what its parent has by now."""

    def __init__(self, *, forked: bool = False) -> None:
        self._kept: dict[Attribute, object] = {}
        if forked:
            self.save()

    def save(self) -> None:
        """Keep what the running process has."""
        self._kept = {attribute: _value(attribute) for attribute in _originals}

    def restore(self) -> None:
        """Let the running process have what was kept."""
        for attribute, original in _originals.items():
            kept = self._kept.get(attribute, original)
            if kept is _value(attribute):
                continue
            if kept is _NONE:
                delattr(*attribute)
            else:
                setattr(*attribute, kept)


class PatchesOfCaller(OwnPatches):
    """What whoever runs the processes has replaced; when they are over, nothing is watched."""

    def restore(self) -> None:
        """Let the caller go on with what was kept."""
        super().restore()
        _originals.clear()


@cache
def _replaced_in(file: str) -> frozenset[Path]:
    """The attributes that a file assigns to, of what it imports; none if it cannot be read."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    nodes = list(ast.walk(tree))
    imported = {name: path for node in nodes for name, path in _imports(node)}
    paths = [path for node in nodes if (path := _written(node)) is not None]
    written = {(*imported[path[0]], *path[1:]) for path in paths if path[0] in imported}
    return frozenset(written.union(*map(_patched, nodes)))


def _imports(node: ast.AST) -> Iterator[tuple[str, Path]]:
    """What an import binds: a name, and what it stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            path = tuple(alias.name.split("."))
            yield (alias.asname, path) if alias.asname else (path[0], path[:1])
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, (*node.module.split("."), alias.name)


def _written(node: ast.AST) -> Path | None:
    """The dotted name that `a.b = …`, `del a.b`, `setattr(a, "b", …)` or `patch.object(a, "b", …)`
    writes to."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return _dotted(node)
    if isinstance(node, ast.Call) and _is_setter(_dotted(node.func) or ()):
        owner, name = (*node.args, None, None)[:2]
        path = _dotted(owner)
        if path is not None and isinstance(name, ast.Constant):
            return (*path, str(name.value))
    return None


def _is_setter(function: Path) -> bool:
    """Whether it is `setattr` or `delattr`, also pytest's, or `unittest.mock.patch.object`."""
    return function[-1:] in (("setattr",), ("delattr",)) or function[-2:] == ("patch", "object")


def _patched(node: ast.AST) -> set[Path]:
    """The dotted name that `unittest.mock.patch("a.b", …)` writes to, if this is such a call."""
    if isinstance(node, ast.Call) and node.args and (_dotted(node.func) or ())[-1:] == ("patch",):
        target = getattr(node.args[0], "value", None)
        if isinstance(target, str) and "." in target:
            return {tuple(target.split("."))}
    return set()


def _dotted(node: ast.AST | None) -> Path | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None


def _find(path: Path) -> Attribute | None:
    """The attribute that a path leads to, if its module or class is one that processes share."""
    for end in range(len(path) - 1, 0, -1):
        owner = sys.modules.get(".".join(path[:end]))
        if owner is None:
            continue
        for name in path[end:-1]:
            owner = vars(owner).get(name) if _is_shared(owner) else None
        return (owner, path[-1]) if _is_shared(owner) else None
    return None


def _is_shared(owner: object) -> bool:
    module = sys.modules.get(owner.__module__) if isinstance(owner, type) else owner
    if not isinstance(module, ModuleType):
        return False
    file = getattr(module, "__file__", None)
    return file is None or not is_user_file(file)


def _value(attribute: Attribute) -> object:
    owner, name = attribute
    return vars(owner).get(name, _NONE)
