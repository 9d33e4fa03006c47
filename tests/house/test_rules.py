"""The rules of the house catch who breaks them: in a copy of the package with offenders in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PLANTED = {
    "d2lpar/vgpu/sim/upwards.py": "from ..torch_backend import runtime as runtime\n",
    "d2lpar/timeline/drawing.py": "import matplotlib as matplotlib\n",
    "d2lpar/machines/starting.py": "import ipyparallel as ipyparallel\n",
    "d2lpar/vgpu/api/leaving.py": "from ...lesson import data as data\n",
    "d2lpar/lesson/one.py": "def one() -> None:\n    from . import other as other\n",
    "d2lpar/lesson/other.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from . import one as one\n"
    ),
}
BROKEN = (
    "Rooms stand on floors; imports point down",
    "The engine stands by itself, on machines and timeline",
    "Only plots draws",
    "Only processes.cluster knows ipyparallel",
    "No two modules import each other",
)


def plant(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(*command: object, folder: Path) -> subprocess.CompletedProcess:
    world = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [*map(str, command)], cwd=folder, env=world, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.skipif(find_spec("importlinter") is None, reason="needs import-linter")
def test_imports_that_point_up_or_into_another_room(copy):
    shutil.copytree(ROOT / "d2lpar", copy / "d2lpar", ignore=shutil.ignore_patterns("__pycache__"))
    plant(copy, PLANTED)
    lint = Path(sys.executable).with_name("lint-imports")
    printed = run(lint, "--no-cache", "--no-logo", folder=copy).stdout
    for contract in BROKEN:
        assert f"{contract} BROKEN" in printed


@pytest.mark.skipif(find_spec("ruff") is None, reason="needs ruff")
@pytest.mark.parametrize(
    ("name", "source", "rule"),
    [
        ("d2lpar/lesson/x.py", '"""X."""\n\nimport torch\n\ny = torch._C\n', "SLF001"),
        ("d2lpar/lesson/x.py", '"""X."""\n\n\ndef public() -> None:\n    pass\n', "D103"),
        ("d2lpar/vgpu/ranks/private/c10d.py", '"""X."""\n\nimport torch\n\ny = torch._C\n', None),
    ],
)
def test_private_names_and_missing_docstrings(copy, name, source, rule):
    plant(copy, {name: source})
    done = run(sys.executable, "-m", "ruff", "check", "--no-cache", "d2lpar", folder=copy)
    assert (done.returncode == 0) == (rule is None)
    assert rule is None or rule in done.stdout


@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy")
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def half(x: int) -> int:\n    return x / 2\n", "[return-value]"),
        ("def half(x):\n    return x / 2\n", "[no-untyped-def]"),
        ("x: int = ''  # type: ignore\n", "[ignore-without-code]"),
        ("x: int = 1  # type: ignore[assignment]\n", "[unused-ignore]"),
    ],
)
def test_types_that_do_not_fit(copy, source, error):
    plant(copy, {"d2lpar/__init__.py": source})
    done = run(sys.executable, "-m", "mypy", "--cache-dir", os.devnull, folder=copy)
    assert done.returncode == 1
    assert error in done.stdout


# A module for each lesson stands in these, and what they share.
MANY = {"d2lpar/checks", "d2lpar/checks/challenges", "d2lpar/trials"}


def test_a_folder_can_be_taken_in_at_a_glance():
    folders = [
        folder
        for room in ("d2lpar", "tests")
        for folder in [ROOT / room, *(ROOT / room).rglob("*/")]
        if folder.name != "__pycache__" and folder.relative_to(ROOT).as_posix() not in MANY
    ]
    entries = {
        folder.relative_to(ROOT).as_posix(): sum(p.name != "__pycache__" for p in folder.iterdir())
        for folder in folders
        if folder.is_dir()
    }
    assert entries["d2lpar/vgpu/ranks"] > 8
    assert {folder: n for folder, n in entries.items() if n > 16} == {}
