"""Whether an answer is a solution of the course's: it is known by its fingerprint alone.

Comments, docstrings, annotations and spaces do not count, and names do not where an answer is so
long that nobody else writes the same by chance. This finds copies; it does not find who has learnt
from a solution and wrote another.
"""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from pathlib import Path

from ..grader import source

FILE = Path(__file__).with_name("own_answers.json")
LONG = 90  # nodes of the syntax tree


def is_own(text: str, name: str) -> bool:
    """Whether the function `name` in a text is one of the course's solutions. Raises `Refused`."""
    return not prints(text, name).isdisjoint(_known().get(name, ()))


def prints(text: str, name: str) -> set[str]:
    """The fingerprints of a function and what it needs. Raises `Refused` for what is no Python."""
    tree = source.parsed(source.graded_part(text, name))
    _strip(tree)
    found = {_hash(tree, "as it is")}
    if sum(1 for _ in ast.walk(tree)) >= LONG:
        _rename(tree)
        found.add(_hash(tree, "but for names"))
    return found


def _hash(tree: ast.Module, how: str) -> str:
    return hashlib.sha256(f"{how} {_told(tree)}".encode()).hexdigest()[:32]


def _told(node: object) -> str:
    """A syntax tree as text, the same in every version of Python: fields that are empty are left
    out, since later versions have more of them."""
    if isinstance(node, list):
        return f"[{' '.join(map(_told, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        f"{name}={_told(value)}" for name, value in ast.iter_fields(node) if value not in (None, [])
    ]
    return f"{type(node).__name__}({' '.join(fields)})"


def _strip(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None and len(node.body) > 1:
                del node.body[0]
        elif isinstance(node, ast.arg):
            node.annotation = None


def _rename(tree: ast.Module) -> None:
    """Give all names that the text binds others, in the order in which they come."""
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    bound |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    new: dict[str, str] = {}
    for node in ast.walk(tree):
        for field in ("id", "arg", "name"):
            old = getattr(node, field, None)
            if isinstance(old, str) and old in bound and not isinstance(node, ast.keyword):
                setattr(node, field, new.setdefault(old, f"name{len(new)}"))


@cache
def _known() -> dict[str, list[str]]:
    """Of each puzzle, as `tools/challenges.py` has recorded them."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
