"""The life of a rank that is a process: its devices, its place among the others, its program."""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from ..cuda.lazy_init import ProcessDevices
from ..ranks.torch_names import names_of_torch
from ..ranks.world.rank import Here, ProcessStart
from ..ranks.world.rank_scheduler import Ended
from ..torch_backend.machine.runtime import Runtime, current_runtime, forget_fork
from .far_clock import FarClock
from .far_ranks import ProcessRank, ProcessWorld
from .values import OwnBlocks
from .wire import SEAT, Wire


@dataclass(frozen=True)
class Place:
    """Where a process is in a run.

    `devices` are the numbers of those that each rank sees, its own first; `node` those of its
    machine. `folder` is where values are exchanged, `records` says whether the run is recorded.
    """

    number: int
    name: str
    devices: Sequence[Sequence[int]]
    node: Sequence[int]
    variables: dict[str, str]
    arguments: Sequence[str]
    folder: str
    records: bool = False


class _Stream:
    """In the place of stdout or stderr: the conductor prints, as the rank has its turn."""

    def __init__(self, wire: Wire, number: int, theirs: Any) -> None:
        self._wire, self._number, self._theirs = wire, number, theirs
        self._begun = ""

    def write(self, text: str) -> int:
        """Hand on what is complete of a line."""
        lines = self._begun + text
        end = max(lines.rfind("\n"), lines.rfind("\r")) + 1
        self._begun = lines[end:]
        if end:
            self._say(lines[:end])
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Nothing is held back but the beginning of a line."""

    def finish(self) -> None:
        """Hand on what has no end of a line yet."""
        if self._begun:
            self._say(self._begun)
            self._begun = ""

    def _say(self, text: str) -> None:
        self._wire.post(SEAT, "say", (self._number, text))
        self._wire.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def live(place: Place, connection: Connection, program: Callable[[Runtime], dict]) -> int:
    """Run `program(rt)` as the process of a rank. It returns what the run is to know, its exit
    status under "status" among it, which is returned. CUDA is being emulated already."""
    wire = Wire(connection)
    os.environ.update(place.variables)
    sys.argv = list(place.arguments)
    if threads := place.variables.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    if place.number:
        _seed(torch.initial_seed() + place.number)
    forget_fork()
    rt = current_runtime()
    _go_by_the_clock_of_all(rt, wire, place)
    ProcessDevices(list(place.node)).restore()
    streams = [_Stream(wire, i, stream) for i, stream in enumerate((sys.stdout, sys.stderr))]
    before, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), streams  # type: ignore[assignment]
    try:
        with _among_others(rt, wire, place):
            report = program(rt)
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.finish()
    with suppress(Ended, OSError):
        wire.ask(SEAT, "end", (pickle.dumps(report),))
        wire.close()
    status: int = report["status"]
    return status


def _go_by_the_clock_of_all(rt: Runtime, wire: Wire, place: Place) -> None:
    clock: Any = FarClock(wire, rt.machine, place.name, records=place.records)
    rt.clock = rt.host_threads.clock = clock
    rt.pinned._clock = clock  # noqa: SLF001


@contextmanager
def _among_others(rt: Runtime, wire: Wire, place: Place) -> Iterator[ProcessRank]:
    """In the block all threads of this process are those of a rank."""
    world: Any = ProcessWorld(rt, wire, place.devices)
    rt.current_device = next(iter(place.devices[place.number]), 0)
    start = ProcessStart(place.name, rt.current_device, states=[ProcessDevices(list(place.node))])
    rank = ProcessRank(world, place.number, start, OwnBlocks(place.folder, f"{place.number}-"))
    with names_of_torch():
        Here.rank = rank
        try:
            yield rank
        finally:
            rank.groups.remove_all()
            rank.unwaited.close()
            rank.is_over = True
            Here.rank = None


def _seed(seed: int) -> None:
    """Start random numbers of its own. A process takes them from the system, and this one from
    torch's seed and its number, so that every run takes the same way."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
