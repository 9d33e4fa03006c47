"""How devices spend simulated time: summed up as spans come, in memory that does not grow.

A device computes, sends or receives, or waits. A wait ends with the work that follows it. As far as
the host had not yet queued that work, the device waited for the host; for the rest of the wait the
work was queued and waited for something else: another rank, another stream, a link.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ....timeline import Span, Timeline

MOST_OPEN = 4096  # spans that are kept to put them in order: they come almost in that of time
COMMUNICATION = ("copy", "collective")
Piece = tuple[float, float, str, float]  # start, end, kind, when the host had queued it


@dataclass
class DeviceUsage:
    """Simulated seconds of one device.

    `compute_s` and `communication_s` may overlap; `exposed_communication_s` is the part of the
    latter in which nothing is computed. With `waits_for_host_s` and `waits_for_others_s` it and
    `compute_s` add up to the time from the start to the device's last work.
    """

    compute_s: float = 0.0
    communication_s: float = 0.0
    exposed_communication_s: float = 0.0
    waits_for_host_s: float = 0.0
    waits_for_others_s: float = 0.0
    last_s: float = 0.0
    _open: list[Piece] = field(default_factory=list, repr=False)
    _computed_s: float = 0.0  # until when its work is counted
    _communicated_s: float = 0.0

    def add(self, span: Span, queued_s: float) -> None:
        """Count a span of the device."""
        self._open.append((span.start_s, span.end_s, span.kind, queued_s))
        if len(self._open) >= 2 * MOST_OPEN:
            self._count(MOST_OPEN)

    def finish(self) -> None:
        """Count all that is left."""
        self._count(0)

    def _count(self, kept: int) -> None:
        self._open.sort()
        counted = len(self._open) - kept
        for piece in self._open[:counted]:
            self._count_piece(*piece)
        del self._open[:counted]

    def _count_piece(self, start_s: float, end_s: float, kind: str, queued_s: float) -> None:
        self._count_wait(start_s, queued_s)
        if kind in COMMUNICATION:
            self.communication_s += max(0.0, end_s - max(start_s, self._communicated_s))
            self._communicated_s = max(self._communicated_s, end_s)
            exposed_from_s = max(start_s, self.last_s)
            self.exposed_communication_s += max(0.0, end_s - exposed_from_s)
        else:
            # What was counted as exposed communication is hidden by what computes meanwhile.
            hidden_s = min(end_s, self.last_s) - max(start_s, self._computed_s)
            self.exposed_communication_s -= max(0.0, hidden_s)
            self.compute_s += max(0.0, end_s - max(start_s, self._computed_s))
            self._computed_s = max(self._computed_s, end_s)
        self.last_s = max(self.last_s, end_s)

    def _count_wait(self, start_s: float, queued_s: float) -> None:
        gap_s = start_s - self.last_s
        if gap_s > 0:
            for_host_s = min(gap_s, max(0.0, queued_s - self.last_s))
            self.waits_for_host_s += for_host_s
            self.waits_for_others_s += gap_s - for_host_s


class UsageTimeline(Timeline):
    """A timeline that keeps no spans and counts, by device, what they say from `begin_s` on."""

    def __init__(self, clock: str, begin_s: float = 0.0) -> None:
        super().__init__(clock, samples_memory=False)
        self.usage: defaultdict[str, DeviceUsage] = defaultdict(lambda: DeviceUsage(last_s=begin_s))
        self.last_s = begin_s
        self._queued: dict[int, float] = {}  # by correlation, for work that has not begun

    def add_dispatch(
        self, thread: str, name: str, start_s: float, end_s: float, correlation: int, line: str = ""
    ) -> None:
        """Note when an operation was queued: there are many, and no span is made for it."""
        if end_s > self.last_s:
            self.last_s = end_s
        if correlation:
            self._queued[correlation] = end_s

    def add_annotation(self, span: Span) -> None:
        """Keep none: they say nothing of devices."""

    def add(self, span: Span) -> None:
        """Count a span."""
        if span.end_s > self.last_s:
            self.last_s = span.end_s
        if span.device == "host":
            return
        queued_s = self._queued.pop(span.correlation, span.start_s)
        self.usage[span.device].add(span, queued_s)

    def finish(self) -> None:
        """Count all that is left."""
        for usage in self.usage.values():
            usage.finish()
