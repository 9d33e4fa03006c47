"""When the parts of DDP's passes begin and end, in simulated time: torch's timer of its logging.

As in torch, the first ten iterations are timed, and then one in so many; the parts of an iteration
are read when a later one begins. Marks take no time. Reading makes the host wait for the last of
them, but only when a program asks: torch's timer waits in each iteration that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...torch_backend.machine.runtime import current_runtime
from ...torch_backend.module.graph_capture import capturing
from ...torch_backend.module.streams import Event, current_stream

FIRST, RATE = 10, 100  # torch's
FORWARD, BACKWARD, COMM = "forward_start", "backward_compute_start", "backward_comm_start"
BACKWARD_END, COMM_END = "backward_compute_end", "backward_comm_end"
HOST_TIMES = {
    "forward_compute_time_start": FORWARD,
    "backward_compute_time_start": BACKWARD,
    "backward_comm_time_start": COMM,
    "backward_compute_time_end": BACKWARD_END,
    "backward_comm_time_end": COMM_END,
}
PARTS = {
    "forward_compute_time": (FORWARD, BACKWARD),
    "backward_compute_time": (BACKWARD, BACKWARD_END),
    "backward_comm_time": (COMM, COMM_END),
    "backward_compute_comm_overlap_time": (COMM, BACKWARD_END),
}


@dataclass
class Mark:
    """A moment of the host, and of the stream that was current."""

    event: Event
    host_s: float


class DDPTimes:
    """Nanoseconds of what the passes of a DDP on `device` do, by torch's names."""

    def __init__(self, device: torch.device) -> None:
        self.rate = RATE
        self.iteration = 0
        self.read_at = 0  # the last iteration whose times were read
        self._device = device
        self._marks: dict[str, Mark] = {}
        self._unread: list[Mapping[str, Mark]] = []
        self._read = 0
        self._found: dict[str, int] = {}

    @property
    def collects(self) -> bool:
        """Whether this iteration is timed."""
        return self.iteration > 0 and (self.iteration <= FIRST or self.iteration % self.rate == 0)

    def begin_forward(self) -> None:
        """A forward pass begins whose gradients will be averaged."""
        if self.collects:
            self._unread.append(self._marks)
            self.read_at = self.iteration
        self._marks = {}
        self.iteration += 1
        self.mark(FORWARD)

    def mark(self, moment: str) -> None:
        """Note that this moment of a pass has come; in a capture, which takes no time, none has."""
        if self.collects and capturing() is None:
            event, host_s = Event(enable_timing=True), list[float]()
            event.record(current_stream(self._device))
            current_runtime().host_threads.submit(
                self._device.index, lambda host_thread: host_s.append(host_thread.now_s)
            )
            self._marks[moment] = Mark(event, host_s[0])

    def found(self) -> dict[str, int]:
        """What the last timed iteration took, the averages of all, and when its parts began."""
        for marks in self._unread:
            self._read += 1
            self._note(marks)
        self._unread = []
        return dict(self._found)

    def _note(self, marks: Mapping[str, Mark]) -> None:
        for name, (start, end) in PARTS.items():
            self._found[name] = 0
            if start in marks and end in marks:
                self._found[name] = taken = _between_ns(marks[start].event, marks[end].event)
                before = self._found.get(f"avg_{name}", 0) * (self._read - 1)
                self._found[f"avg_{name}"] = (taken + before) // self._read
        for name, moment in HOST_TIMES.items():
            self._found[name] = round(marks[moment].host_s * 1e9) if moment in marks else 0


def _between_ns(start: Event, end: Event) -> int:
    end.synchronize()
    return int(start.elapsed_time(end) * 1e6)
