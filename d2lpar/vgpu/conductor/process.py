"""The life of a rank that is a process: its devices, its place among the others, its program."""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import util
from multiprocessing.connection import Client, Connection
from typing import Any

import torch

from ..cuda import lazy_init
from ..cuda.lazy_init import ProcessDevices
from ..memory.pinned import PinnedMemory
from ..ranks.launcher import wait_for_exchanges
from ..ranks.torch_names import names_of_torch
from ..ranks.world.rank import Here, ProcessStart
from ..ranks.world.rank_scheduler import Ended
from ..torch_backend.machine.host_threads import HOST
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
    door: str = ""  # where processes call that the program starts


class _Stream:
    """In the place of stdout or stderr: the conductor prints, as the rank has its turn. A forked
    process prints itself."""

    def __init__(self, wire: Wire, number: int, theirs: Any) -> None:
        self._wire, self._number, self._theirs = wire, number, theirs
        self._begun = ""

    def write(self, text: str) -> int:
        """Hand on what is complete of a line."""
        if self._wire.is_cut:
            written: int = self._theirs.write(text)
            self._theirs.flush()
            return written
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
    os.environ.update(place.variables)
    sys.argv = list(place.arguments)
    if threads := place.variables.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    if place.number:
        _seed(torch.initial_seed() + place.number)
    forget_fork()
    with ExitStack() as stack:
        stack.callback(_end)
        Conducted(Wire(connection), place, place.number)
        stack.enter_context(names_of_torch())
        report = program(current_runtime())
        _report(report)
    status: int = report["status"]
    return status


class Conducted:
    """What makes a process one of a run, from now on: it has the clock of all, is a rank, and
    prints by the conductor. A fork of it that uses virtual GPUs first calls at the door itself."""

    current: Conducted | None = None

    def __init__(self, wire: Wire, place: Place, number: int | None) -> None:
        self.wire, self.place, self.report = wire, place, dict[str, Any]()
        rt = current_runtime()
        clock: Any = FarClock(wire, rt.machine, place.name, records=place.records)
        rt.clock = rt.host_threads.clock = clock
        rt.pinned = PinnedMemory(clock, partial(rt.host_threads.submit, HOST))
        ProcessDevices(list(place.node)).restore()
        devices = [place.node] if number is None else place.devices
        world: Any = ProcessWorld(rt, wire, devices)
        rt.current_device = next(iter(place.node), 0)  # as with CUDA: until the program sets one
        start = ProcessStart(
            place.name, rt.current_device, states=[ProcessDevices(list(place.node))]
        )
        blocks = OwnBlocks(place.folder, f"{os.getpid()}-")
        self.rank = ProcessRank(world, number or 0, start, blocks, is_free=number is None)
        Here.rank = self.rank
        for index in devices[number or 0]:
            rt.memories[index].catch_up = partial(wait_for_exchanges, world, index)
        self._before = sys.stdout, sys.stderr
        self._streams: list[Any] = []
        if number is not None:  # what the program starts may print to whom it likes
            self._streams = [_Stream(wire, i, stream) for i, stream in enumerate(self._before)]
            sys.stdout, sys.stderr = self._streams
        Conducted.current = self
        util.register_after_fork(self, _end_with_the_process)

    def end(self) -> None:
        """Say how it has ended, and be nothing of a run any more."""
        if self._streams:
            sys.stdout, sys.stderr = self._before
        Conducted.current = Here.rank = None
        if self.wire.is_cut:
            return
        with suppress(Ended, RuntimeError, OSError):
            for stream in self._streams:
                stream.finish()
            self.rank.groups.remove_all()
            self.rank.unwaited.close()
            self.rank.is_over = True
            self.wire.ask(SEAT, "end", (pickle.dumps(self.report),))
            self.wire.close()

    def after_fork(self) -> None:
        """Go on in a child that has just been forked: CUDA that has started is the parent's."""
        self.wire.cut()
        if lazy_init.is_started():
            return
        sys.stdout, sys.stderr = self._before
        forget_fork()
        come(self.place)


def come(place: Place) -> Conducted:
    """Call at the door of a run, as a process that a program of it has started."""
    connection: Any = Client(place.door, family="AF_UNIX")
    connection.send((os.getpid(), os.getppid(), place.name))
    return Conducted(Wire(connection), place, None)


def _report(report: dict[str, Any]) -> None:
    if Conducted.current is not None:
        Conducted.current.report = report


def _end() -> None:
    """End whatever this process is of a run now: it may have been forked since it began."""
    if Conducted.current is not None:
        Conducted.current.end()


def wire_here() -> Wire | None:
    """That of this process, if it is one of a run."""
    current = Conducted.current
    return None if current is None or current.wire.is_cut else current.wire


def _end_with_the_process(_: object) -> None:
    """Let a process that multiprocessing has forked say how it ends, where it is one of the run."""
    current = Conducted.current
    if current is not None and not current.wire.is_cut:
        util.Finalize(None, current.end, exitpriority=-100)


def _after_fork() -> None:
    if Conducted.current is not None:
        Conducted.current.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def _seed(seed: int) -> None:
    """Start random numbers of its own. A process takes them from the system, and this one from
    torch's seed and its number, so that every run takes the same way."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
