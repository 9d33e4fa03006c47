"""The public names of the package, and what texts and annotations mean by one.

griffe reads the source, without importing it.
"""

from __future__ import annotations

import ast
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import griffe

CODE = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`(?!`)")
COMMENT = re.compile(r"\s#\s(?!type:|fmt:|noqa)(.+)$")
NONE_SUCH = "{place}: `{name}` is no name of the package"
LOG = logging.getLogger("griffe")  # what is wrong in docstrings


def load(name: str, where: Path) -> griffe.Module:
    """The package `name`, read from the folder `where`."""
    package = griffe.load(name, search_paths=[where], docstring_parser="google")
    assert isinstance(package, griffe.Module)
    return package


def public(parent: griffe.Object) -> Iterator[griffe.Object]:
    """What the reference tells of a module or class, in the order of the source: functions,
    classes, and what else has a docstring or, as a constant of a module, a comment beside it."""
    for member in parent.members.values():
        if isinstance(member, griffe.Object) and not member.name.startswith("_"):
            constant = member.is_attribute and not (member.docstring or comment(member))
            if not (member.is_module or constant):
                yield member


def modules(package: griffe.Module) -> Iterator[griffe.Module]:
    """The public modules of a package, itself the first, and those of its folders."""
    yield package
    for name, member in sorted(package.members.items()):
        if isinstance(member, griffe.Module) and not name.startswith("_"):
            yield from modules(member)


def comment(attribute: griffe.Object) -> str:
    """What stands beside a constant of a module."""
    if attribute.parent and attribute.parent.is_module and attribute.lines:
        found = COMMENT.search(attribute.lines[-1])
        return found[1].strip() if found else ""
    return ""


class Names:
    """The names that the reference tells of, and what texts and annotations mean by one."""

    def __init__(self, package: griffe.Module) -> None:
        self.package = package
        self.known: dict[str, griffe.Object] = {}
        for module in modules(package):
            self._add(module)
        self.face = {
            **{name: f"{home}.{name}" for name, home in self._table("_HOME").items()},
            **self._table("_MODULES"),
        }
        self._ends: dict[str, list[str]] = defaultdict(list)
        for path in self.known:
            parts = path.split(".")
            for start in range(1, len(parts) - 1):
                self._ends[".".join(parts[start:])].append(path)

    def _add(self, target: griffe.Object) -> None:
        self.known[target.path] = target
        if target.is_module or target.is_class:
            for member in public(target):
                self._add(member)

    def _table(self, name: str) -> dict[str, str]:
        """A table of the package's face: from where it fetches its names when they are used."""
        if name not in self.package.members:
            return {}
        value: dict[str, str] = ast.literal_eval(str(self.package[name].value))
        return value

    def at(self, path: str) -> str | None:
        """Where the reference tells of what is found at `path`, by whatever name it goes there."""
        first, _, rest = path.partition(".")
        if first != self.package.name:
            return None
        name, dot, after = rest.partition(".")
        rest = self.face.get(name, name) + dot + after
        try:
            target = self.package[rest].canonical_path if rest else first
        except (KeyError, griffe.GriffeError):
            return None
        return target if target in self.known else None

    def meant(self, name: str, scope: griffe.Object) -> str | None:
        """Where the reference tells of the name in a docstring of `scope`; None if it does not, or
        if several things are called so. Raises `LookupError` if it should be there and is not."""
        first, dot, rest = name.partition(".")
        if first in ("par", self.package.name) and dot:
            found = self.at(f"{self.package.name}.{rest}")
            if found is None:
                raise LookupError(name)
            return found
        if first in _parameters(scope):
            return None
        try:
            resolved = scope.resolve(first)
        except griffe.NameResolutionError:
            resolved = self.package.name + "." + first if first in self.face else ""
        ends = self._ends[name] if dot and name in self._ends else []
        found = self.at(resolved + dot + rest) or (ends[0] if len(ends) == 1 else None)
        return found if found != scope.path else None

    def linked(self, text: str, scope: griffe.Object) -> str:
        """A docstring of `scope` in which names of the package lead to where they are told of."""

        def replaced(match: re.Match[str]) -> str:
            try:
                target = self.meant(match[1], scope)
            except LookupError:
                place = f"{scope.relative_filepath}:{scope.lineno or 1}"
                LOG.warning(NONE_SUCH.format(place=place, name=match[1]))
                return match[0]
            return f"{{py:obj}}`{match[0].strip('`')} <{target}>`" if target else match[0]

        return CODE.sub(replaced, text)

    def annotation(self, expression: griffe.Expr | str | None) -> str:
        """An annotation in which names of the package have their full path; Sphinx shortens it."""
        if not isinstance(expression, griffe.Expr):
            return expression or ""
        if isinstance(expression, griffe.ExprName | griffe.ExprAttribute):
            return self.at(expression.canonical_path) or str(expression)
        return "".join(map(self.annotation, expression.iterate(flat=False)))


def _parameters(scope: griffe.Object) -> set[str]:
    owners = [scope, scope.parent] if scope.is_function or scope.is_attribute else [scope]
    return {
        parameter.name
        for owner in owners
        if isinstance(owner, griffe.Function | griffe.Class)
        for parameter in owner.parameters
    }
