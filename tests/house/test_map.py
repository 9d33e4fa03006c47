"""The maps of the package, held against the package: every room, and every stop of the journeys."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import warm_process

import d2lpar as par

PACKAGE = Path(par.__file__).parent
STOP = re.compile(r"^\d+\. `(\S+\.py)` `([\w.]+)`", re.MULTILINE)
ROW = re.compile(r"^\| `(\S+)` \|", re.MULTILINE)


def sections(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """The stops of each journey of a map, by its heading: paths from the package, and names."""
    parts = re.split(r"^##+ (.*)$", (folder / "README.md").read_text(encoding="utf-8"), flags=re.M)
    prefix = folder.relative_to(PACKAGE)
    found = {
        heading: [((prefix / path).as_posix(), name) for path, name in STOP.findall(text)]
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {heading: stops for heading, stops in found.items() if stops}


def calls_of(journey: Callable[[], object]) -> Iterator[tuple[str, str]]:
    """Functions of the package that a journey calls, in their order: path and qualified name."""
    seen: list[tuple[str, str]] = []
    root = f"{PACKAGE}{os.sep}"

    def note(frame: object, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            seen.append((code.co_filename.removeprefix(root), code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        journey()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return iter(seen)


def check(stops: list[tuple[str, str]], journey: Callable[[], object]) -> None:
    calls = calls_of(journey)
    for number, stop in enumerate(stops, 1):
        assert stop in calls, f"the journey does not come by stop {number} after those before it"


@pytest.fixture(scope="module")
def journeys():
    return sections(PACKAGE)


def product():
    """Of a size of its own: what costs of an operation are known are not worked out again."""
    w = torch.rand(37, 41, device="vgpu:1")
    return lambda: torch.rand(4, 37).to("vgpu:1") @ w


def test_every_room_is_on_the_map():
    rooms = {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    on_map = ROW.findall((PACKAGE / "README.md").read_text(encoding="utf-8"))
    assert sorted(on_map) == sorted(f"{room}/" for room in rooms)
    assert len(rooms) <= 12


def test_every_room_of_the_engine_is_on_its_map():
    engine = PACKAGE / "vgpu"
    on_map = set(ROW.findall((engine / "README.md").read_text(encoding="utf-8")))
    parts = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in engine.iterdir()
        if path.name not in ("__pycache__", "__init__.py", "README.md")
    }
    assert on_map == parts


def test_there_are_six_journeys(journeys):
    assert len(journeys) == 6
    assert all(len(stops) >= 5 for stops in journeys.values())


def test_devices(journeys):
    """In a process of its own: registering happens once."""
    stops = journeys["`par.devices(2)`"]
    code = (
        "import test_map\n"
        f"test_map.check({stops!r}, lambda: test_map.par.devices(2, kind='virtual'))"
    )
    done = warm_process.run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS")
def test_a_program(journeys, tmp_path):
    """In a process of its own: it forks one."""
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.ones(4, device='cuda').sum().item()\n")
    code = (
        "import test_map\nfrom d2lpar.command import cli\n"
        f"stops = {journeys['`d2lpar run script.py`']!r}\n"
        f"test_map.check(stops, lambda: cli.main(['run', {str(script)!r}]))"
    )
    done = warm_process.run(code)
    assert done.returncode == 0, done.stderr


def test_a_copy_and_a_product(journeys, fresh_gpus):
    check(journeys['`x.to("vgpu:1") @ w`'], product())


def test_a_product_in_the_engine(gpus):
    (stops,) = sections(PACKAGE / "vgpu").values()
    x, w = (torch.rand(4, 4, device="vgpu:1") for _ in range(2))
    x @ w  # what is remembered of an operation is found out at its first call, with other shapes
    x, w = (torch.rand(5, 5, device="vgpu:1") for _ in range(2))
    check(stops, lambda: x @ w)


def test_a_recording(journeys, gpus):
    w = torch.rand(4, 4, device="vgpu:1")

    def journey():
        with par.record() as timeline:
            w @ w
        par.plots.gantt(timeline)

    check(journeys["`with par.record() as timeline:` … `par.plots.gantt(timeline)`"], journey)


def test_virtual_ranks(journeys, gpus):
    def step():
        dist.all_reduce(torch.ones(1, device=f"vgpu:{dist.get_rank()}"))

    check(
        journeys["`par.run_ranks(f, devices)` with one all-reduce"],
        lambda: par.run_ranks(step, gpus[:2]),
    )


@pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS")
@pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel")
def test_real_ranks(journeys):
    def journey():
        with par.cluster(2) as ranks:
            ranks.run_cell("rank")

    check(journeys["`par.cluster(2)` with one `%%px`"], journey)
