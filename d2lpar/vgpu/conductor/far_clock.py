"""The conductor's clock, as a rank's process has it: the methods of `sim.clock.Clock`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from ...machines import Machine
from ...timeline import Timeline
from ..sim.clock import Clock
from ..torch_backend.machine import op_details
from ..torch_backend.machine.op_details import OpDetails
from .wire import CLOCK, HOST_THREAD, SEAT, FarObject, Wire

# What needs no answer, what makes something that is named later, and what is asked for.
POSTED = (
    *("gather", "host_work", "annotate", "dispatch", "kernel", "stream_waits", "note_memory"),
    "spend",
)
WAITS = ("wait_for", "wait_for_streams", "wait_for_device")
MADE = ("record_event", "announce", "moment", "copy")
ASKED = ("end_s", "is_done", "is_known_done", "is_idle", "settle", "new_stream")


class FarHostThread(FarObject):
    """A host thread: its time is asked for when somebody reads it."""

    __slots__ = ("_line", "name", "used", "waits")

    def __init__(self, wire: Wire, name: str, number: int | None = None) -> None:
        super().__init__(wire, number)
        self.name = name
        self.used: None = None
        self.waits: None = None
        self._line = ""

    @property
    def now_s(self) -> float:
        """Its time."""
        now_s: float = self.wire.read(self.number, "now_s")
        return now_s

    @now_s.setter
    def now_s(self, time_s: float) -> None:
        self.wire.write(self.number, "now_s", time_s)

    @property
    def line(self) -> str:
        """Where the program asks for what it does."""
        return self._line

    @line.setter
    def line(self, line: str) -> None:
        if line != self._line:
            self._line = line
            self.wire.write(self.number, "line", line)


class FarWork(FarObject):
    """Queued work, or a moment of a host thread."""

    __slots__ = ()

    @property
    def end_s(self) -> float | None:
        """When it ends; None while that is not known."""
        end_s: float | None = self.wire.read(self.number, "end_s")
        return end_s

    @property
    def start_s(self) -> float | None:
        """When it begins; None while that is not known."""
        start_s: float | None = self.wire.read(self.number, "start_s")
        return start_s


class FarClock:
    """That of all ranks. `brings_values()` says whether somebody else's call may bring this process
    values that it has not got yet: then a wait of the host is a question.
    """

    def __init__(
        self, wire: Wire, machine: Machine, host_name: str, *, records: bool = False
    ) -> None:
        self.machine = machine
        self.host = FarHostThread(wire, host_name, HOST_THREAD)
        self.brings_values: Callable[[], bool] = lambda: False
        # That of the run, which this process only tells what its tensors occupy.
        self._of_run: tuple[Timeline, ...] = (Timeline("simulated"),) if records else ()
        self._wire = wire
        self._recording: list[Timeline] = []
        # Of the operations that are recorded: what profiles want of them stays in this process.
        self._details: dict[int, OpDetails | None] = {}
        self._noted: OpDetails | None = None

    def grow(self, machine: Machine) -> None:
        """Go on with a machine that has more accelerators."""
        self._wire.ask(SEAT, "grow", (pickle.dumps(machine),))
        self.machine = machine

    def branch(self, host_thread: FarHostThread, name: str) -> FarHostThread:
        """Another thread of the same process, which begins now."""
        made = FarHostThread(self._wire, name)
        self._wire.make(made, CLOCK, "branch", (host_thread, name))
        return made

    def join(
        self,
        host_thread: FarHostThread,
        stream: tuple[int, int],
        work: FarWork,
        name: str,
        *,
        nbytes: int = 0,
    ) -> None:
        """Queue announced work of several devices of this process on a stream of one of them."""
        self._wire.post(SEAT, "join", (host_thread, stream, work, name, nbytes))

    def mark(self, host_thread: FarHostThread, optimizer: int, stream: tuple[int, int]) -> None:
        """Mark the end of a step."""
        self._wire.post(SEAT, "mark", (host_thread, optimizer, stream))

    def wait_begins(self, host_thread: FarHostThread) -> FarWork:
        """The moment when a wait for a device begins."""
        made = FarWork(self._wire)
        self._wire.make(made, SEAT, "wait_begins", (host_thread,))
        return made

    def wait_ends(self, host_thread: FarHostThread, begun: FarWork, *of_call: object) -> None:
        """Tell of a wait for a device."""
        self._wire.post(SEAT, "wait_ends", (host_thread, begun, *of_call))

    @property
    def timelines(self) -> list[Timeline]:
        """What records: on the clock, and then here."""
        return [*self._of_run, *self._recording]

    @timelines.setter
    def timelines(self, timelines: Iterable[Timeline]) -> None:
        wanted = [t for t in timelines if not any(t is other for other in self._of_run)]
        for timeline in self._recording:
            if not any(timeline is other for other in wanted):
                for method, args, details in self._wire.ask(SEAT, "end_recording", (id(timeline),)):
                    with op_details.carrying_out(self._details.get(details)):
                        getattr(timeline, method)(*args)
        for timeline in wanted:
            if not any(timeline is other for other in self._recording):
                self._wire.post(SEAT, "record", (id(timeline),))
        self._recording = wanted
        self._wire.before_each = self._note_details if wanted else None
        if not wanted:
            self._details.clear()

    def _note_details(self) -> None:
        """Tell which operation the next calls are of."""
        details = op_details.running()
        if details is not self._noted:
            self._noted = details
            number = len(self._details) + 1
            self._details[number] = details
            self._wire.post(SEAT, "note_details", (number,))


def _posted(name: str) -> Callable[..., None]:
    def method(self: Any, *args: object) -> None:
        self._wire.post(CLOCK, name, args)

    return method


def _waiting(name: str) -> Callable[..., None]:
    def method(self: Any, *args: object) -> None:
        self._wire.wait(CLOCK, name, args, answers=self.brings_values())

    return method


def _made(name: str) -> Callable[..., FarWork]:
    def method(self: Any, *args: object) -> FarWork:
        made = FarWork(self._wire)
        self._wire.make(made, CLOCK, name, args)
        return made

    return method


def _asked(name: str) -> Callable[..., object]:
    def method(self: Any, *args: object) -> object:
        return self._wire.ask(CLOCK, name, args)

    return method


for _names, _kind in ((POSTED, _posted), (WAITS, _waiting), (MADE, _made), (ASKED, _asked)):
    for _name in _names:
        _method = _kind(_name)
        _method.__name__, _method.__doc__ = _name, getattr(Clock, _name).__doc__
        setattr(FarClock, _name, _method)
