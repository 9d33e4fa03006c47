"""What happened, where and when: one list of spans that charts, figures and tests all read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one resource.

    `device` is "host" or a device's name ("vgpu:0"), `stream` a stream's number (or a host lane's
    name), `kind` one of "compute", "copy", "dispatch" (the host queues an operation), "host" (it
    does something else) and "wait" (for a device); times are seconds on the timeline's clock;
    `bytes` were moved and `flops` computed.
    """

    device: str
    stream: int | str
    kind: str
    name: str
    start_s: float
    end_s: float
    bytes: int = 0
    flops: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass
class Timeline:
    """Spans in the order in which they were queued, and the clock that timed them.

    `clock` says where the times come from: "simulated on <machine>" or "measured".
    """

    clock: str
    spans: list[Span] = field(default_factory=list)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def where(self, keep: Callable[[Span], bool]) -> Timeline:
        """The timeline of those spans for which `keep(span)` is true."""
        return Timeline(self.clock, [span for span in self.spans if keep(span)])

    def on(self, device: object, *kinds: str) -> Timeline:
        """The timeline of one device, optionally of some kinds of span only."""
        name = str(device)
        return self.where(lambda s: s.device == name and (not kinds or s.kind in kinds))

    @property
    def devices(self) -> list[str]:
        """The names of the devices with spans, the host first."""
        return sorted({span.device for span in self.spans}, key=lambda name: (name != "host", name))

    @property
    def start_s(self) -> float:
        return min((span.start_s for span in self.spans), default=0.0)

    @property
    def end_s(self) -> float:
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def duration_s(self) -> float:
        """Seconds from the first start to the last end."""
        return self.end_s - self.start_s

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one of the spans was under way."""
        return sum(end - start for start, end in _union(self.spans))

    def busy_fraction(self, device: object, *kinds: str) -> float:
        """Share of the whole timeline in which `device` worked, 0 to 1."""
        return self.on(device, *kinds).busy_s / self.duration_s if self.duration_s else 0.0


def _union(spans: Iterable[Span]) -> Iterator[tuple[float, float]]:
    """The disjoint intervals that the spans cover together, in order."""
    current: tuple[float, float] | None = None
    for start, end in sorted((span.start_s, span.end_s) for span in spans):
        if current is None or start > current[1]:
            if current is not None:
                yield current
            current = (start, end)
        else:
            current = (current[0], max(current[1], end))
    if current is not None:
        yield current
