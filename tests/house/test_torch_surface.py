"""torch's private names that the engine uses: all that a release of torch lacks, in one list.

They are read from the source: attributes (`torch._C._data`), imports, and strings (`(torch._C,
"_get_accelerator")`, `getattr(torch, "_x")`, `sys.modules["torch.nn._y"]`). What code asks for with
a default, or with `hasattr`, may be missing, and is not in the list; nor are private attributes of
objects (`tensor._use_count()`), which tests of what they do find.
"""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import d2lpar

ENGINE = Path(d2lpar.__file__).parent / "vgpu"
REPLACING = {"set", "replace", "substitute", "replace_class"}  # of `patching.Patches`
# Names that the engine uses only where a build of torch has them: with CUDA.
ONLY_IN_SOME = {"torch._C._cudnn"}


def is_private(name: str) -> bool:
    return any(p.startswith("_") and not p.startswith("__") for p in name.split("."))


class Names(ast.NodeVisitor):
    """The names of torch in a module, by the names that it gives to parts of torch."""

    def __init__(self) -> None:
        self.known = {"torch": "torch"}
        self.found: set[str] = set()
        self.modules: set[str] = set()

    def dotted(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    def note(self, owner: ast.expr, name: ast.expr) -> None:
        dotted = self.dotted(owner)
        if dotted is not None and isinstance(name, ast.Constant) and isinstance(name.value, str):
            self.found.add(f"{dotted}.{name.value}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "torch":
                self.modules.add(alias.name)
                if alias.asname:
                    self.known[alias.asname] = alias.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                self.known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                self.found.add(f"{node.module}.{alias.name}")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        dotted, target = self.dotted(node.value), node.targets[0]
        if dotted is not None and isinstance(target, ast.Name) and node.col_offset == 0:
            self.known[target.id] = dotted

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self.dotted(node)
        if dotted is None:
            self.generic_visit(node)
        else:
            self.found.add(dotted)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self.generic_visit(node)
        if len(node.elts) == 2:
            self.note(*node.elts)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        is_got = name == "getattr" and len(node.args) == 2
        if is_got or (name in REPLACING and len(node.args) >= 3):
            self.note(*node.args[:2])
        if name == "import_module" and isinstance(node.args[0], ast.Constant):
            self.modules.add(node.args[0].value)
        if name != "hasattr" and (name, len(node.args)) != ("getattr", 3):
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if ast.unparse(node.value) == "sys.modules" and isinstance(node.slice, ast.Constant):
            self.modules.add(node.slice.value)
        self.generic_visit(node)


def surface() -> dict[str, list[str]]:
    """Private names of torch, and the files that use each."""
    users: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ENGINE.rglob("*.py")):
        names = Names()
        names.visit(ast.parse(path.read_text(encoding="utf-8")))
        private = {_up_to_private(n) for n in names.found | names.modules if is_private(n)}
        for name in private:
            users[name].append(path.relative_to(ENGINE.parent).as_posix())
    return users


def _up_to_private(name: str) -> str:
    """Without public attributes of what a private name stands for."""
    parts = name.split(".")
    last = max(i for i, p in enumerate(parts) if is_private(p))
    return ".".join(parts[: last + 1])


def is_there(name: str) -> bool:
    owner, path = torch, "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if hasattr(owner, part):
            owner = getattr(owner, part)
        elif _is_module(path):
            owner = importlib.import_module(path)
        else:
            return False
    return True


def _is_module(path: str) -> bool:
    try:
        return find_spec(path) is not None
    except (ImportError, ValueError):
        return False


def missing() -> Iterator[str]:
    for name, users in sorted(surface().items()):
        if name not in ONLY_IN_SOME and not is_there(name):
            yield f"{name} (used in {', '.join(users)})"


def test_this_torch_has_all_private_names_that_the_engine_uses():
    gone = list(missing())
    assert not gone, "torch lacks:\n" + "\n".join(gone)


def test_all_that_are_missing_are_listed_at_once(monkeypatch):
    used = {"torch._C._no_more": ["a.py"], "torch._no._module": ["a.py", "b.py"], "torch._C": []}
    monkeypatch.setattr("test_torch_surface.surface", lambda: used)
    assert [*missing()] == [
        "torch._C._no_more (used in a.py)",
        "torch._no._module (used in a.py, b.py)",
    ]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = torch._C._a", "torch._C._a"),
        ("_c = torch._C\nx = _c._b", "torch._C._b"),
        ("PLACE = (torch.jit, '_c')", "torch.jit._c"),
        ("patches.replace(torch.nn, '_d', f)", "torch.nn._d"),
        ("from torch._e import f", "torch._e.f"),
        ("m = sys.modules['torch._g']", "torch._g"),
    ],
)
def test_names_are_found_however_they_are_written(source, name):
    names = Names()
    names.visit(ast.parse(source))
    assert name in names.found | names.modules


def test_what_is_asked_for_with_a_default_may_be_missing():
    names = Names()
    names.visit(ast.parse("getattr(torch, '_a', None)\nhasattr(torch._C, '_b')"))
    assert not any(n.endswith(("_a", "_b")) for n in names.found)
