"""The life of a rank that is a process: its devices, its place among the others, its program."""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
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
from ..ranks.world.rank import ProcessStart, belong_to
from ..ranks.world.rank_scheduler import Ended
from ..sim.clock import Clock
from ..torch_backend.machine.host_threads import HOST
from ..torch_backend.machine.runtime import Runtime, current_runtime, forget_fork
from ..torch_backend.operations.serialization import processes_share_devices
from . import starting
from .far_clock import FarClock
from .far_ranks import ProcessRank, ProcessWorld
from .starting import Told
from .values import OwnBlocks
from .wire import HOST_THREAD, SEAT, Wire


@dataclass(frozen=True)
class Place:
    """Where a process is in a run.

    `devices` are the numbers of those that each rank sees, its own first; `node` those of its
    machine. `told` is what processes are told that it starts.
    """

    number: int
    name: str
    devices: Sequence[Sequence[int]]
    node: Sequence[int]
    variables: dict[str, str]
    arguments: Sequence[str]
    told: Told


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
    starting.tell(place.told)
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

    def __init__(self, wire: Wire, place: Place, number: int | None) -> None:
        self.wire, self.place, self.report = wire, place, dict[str, Any]()
        self.names = ExitStack()  # of torch's, that know ranks
        rt = current_runtime()
        clock: Any = FarClock(wire, rt.machine, place.name, records=place.told.records)
        rt.clock = rt.host_threads.clock = clock
        wire.lock = rt.host_threads.lock
        rt.pinned = PinnedMemory(clock, partial(rt.host_threads.submit, HOST))
        ProcessDevices(list(place.node)).restore()
        devices = [place.node] if number is None else place.devices
        world: Any = ProcessWorld(rt, wire, devices)
        rt.current_device = next(iter(place.node), 0)  # as with CUDA: until the program sets one
        start = ProcessStart(
            place.name, rt.current_device, states=[ProcessDevices(list(place.node))]
        )
        blocks = OwnBlocks(place.told.folder, f"{os.getpid()}-")
        self.rank = ProcessRank(world, number or 0, start, blocks, is_free=number is None)
        belong_to(self.rank)
        for index in devices[number or 0]:
            rt.memories[index].catch_up = partial(wait_for_exchanges, world, index)
            if number is None or sum(index in seen for seen in devices) > 1:
                rt.memories[index].beside = partial(self._beside, index)
        self._before = sys.stdout, sys.stderr
        self._streams: list[Any] = []
        if number is not None:  # what the program starts may print to whom it likes
            self._streams = [_Stream(wire, i, stream) for i, stream in enumerate(self._before)]
            sys.stdout, sys.stderr = self._streams
        starting.become(self)
        processes_share_devices(True)
        self._rt = rt
        util.register_after_fork(self, _end_with_the_process)

    def end(self) -> None:
        """Say how it has ended, and be nothing of a run any more."""
        if starting.current() is not self:
            return
        if self._streams:
            sys.stdout, sys.stderr = self._before
        starting.leave(self)
        belong_to(None)
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

    def _beside(self, index: int, nbytes: int) -> int:
        """What other processes hold of a device, of which this one is about to hold so much."""
        others: int = self.wire.ask(SEAT, "hold", (index, nbytes))
        return others

    # --- as one that may start others ---------------------------------------------------------

    def starts(self) -> None:
        """Let the process that is about to be started begin at the present time. They may become
        ranks together."""
        if not self.wire.is_cut:
            self.rank.is_free |= self.rank.is_alone
            self.forks()

    def forks(self) -> None:
        """The same, whoever forks."""
        if not self.wire.is_cut:
            starting.note_start(self.wire.read(HOST_THREAD, "now_s"))

    def rests(self) -> None:
        """Let others go on until this process says something."""
        if not self.wire.is_cut:
            self.wire.post(SEAT, "rest", ())
            self.wire.flush()

    def has_waited(self) -> None:
        """Go on no earlier than the processes have ended that this one has waited for."""
        if not self.wire.is_cut:
            self.wire.post(SEAT, "has_waited_for_others", ())

    def has_forked(self) -> None:
        """Go on in a fork: CUDA that has started is the parent's, and only the time goes on."""
        self.wire.cut()
        if not lazy_init.is_started():
            sys.stdout, sys.stderr = self._before
            come_as_fork(self.place.told)
            return
        rt = self._rt
        rt.clock = rt.host_threads.clock = Clock(rt.machine)
        rt.clock.host.now_s = starting.start_s()
        rt.host_threads.lock = threading.RLock()


def come(place: Place) -> Conducted:
    """Call at the door of a run, as a process that a program of it has started."""
    connection: Any = Client(place.told.door)
    connection.send((os.getpid(), os.getppid(), starting.start_s()))
    place = replace(place, name=connection.recv())
    return Conducted(Wire(connection), place, None)


def come_as_fork(told: Told) -> None:
    """The same of a process that was forked from one that has virtual GPUs."""
    forget_fork()
    current_runtime().host_threads.lock = threading.RLock()  # some thread of the parent's has it
    conducted = come(Place(0, "", [told.node], told.node, {}, [], told))
    conducted.names.enter_context(names_of_torch())


def conducted_here() -> Conducted | None:
    """What this process is of a run; None if it is of none."""
    parent = starting.current()
    return parent if isinstance(parent, Conducted) and not parent.wire.is_cut else None


def _report(report: dict[str, Any]) -> None:
    if (conducted := conducted_here()) is not None:
        conducted.report = report


def _end() -> None:
    """End whatever this process is of a run now: it may have been forked since it began."""
    parent = starting.current()
    if isinstance(parent, Conducted):
        parent.end()


def _end_with_the_process(_: object) -> None:
    """Let a process that multiprocessing has forked say how it ends, where it is one of the run."""
    if (conducted := conducted_here()) is not None:
        util.Finalize(None, conducted.end, exitpriority=-100)


def _seed(seed: int) -> None:
    """Start random numbers of its own. A process takes them from the system, and this one from
    torch's seed and its number, so that every run takes the same way."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
