"""A run as a graph, for each process: what was done, how long it took, and what had to come before.

What comes before a step:

* on the host, the step before it on the same host thread; where a thread of backward begins, or the
  caller goes on after one, what the other threads of the process did last;
* in a wait of the host, what it waited for as well: the wait itself takes no time, unless nothing
  of what it waited for is in the graph;
* on a device, the dispatch that queued it, the work before it on its stream, and what its stream
  waited for by events.

Time of a host thread that no span accounts for is a step of its own. What a device waits for beside
that, until an engine or a link is free, is not in the graph: whoever replays it has engines and
links of his own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .host_processes import Owners
from .spans import Span

UNRECORDED = "not recorded"
TINY_S = 1e-12  # less than any span, more than what rounding does to sums of seconds


@dataclass(frozen=True)
class Step:
    """Something that took from `start_s` to `end_s`, and the numbers of the steps before it."""

    span: Span
    start_s: float
    end_s: float
    before: tuple[int, ...]

    @property
    def on_host(self) -> bool:
        """Whether a processor did it."""
        return self.span.device == "host"


def steps_of(spans: Sequence[Span]) -> dict[str, list[Step]]:
    """The steps of each process, by its name; each comes after those before it.

    Raises ValueError if something on a device was queued by no dispatch among the spans.
    """
    owners = Owners()
    parts: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        parts[owners.of(span)[0]].append(span)
    start_s = min((span.start_s for span in spans), default=0.0)
    return {process: _Graph(start_s).of(part) for process, part in parts.items()}


class _Graph:
    """The graph of one process, step by step in the order of time."""

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._steps: list[Step] = []
        self._last_of: dict[tuple[str, int | str], int] = {}  # of host threads and streams
        self._dispatches: dict[int, int] = {}
        self._work: defaultdict[int, list[int]] = defaultdict(list)  # on devices, by correlation

    def of(self, spans: Iterable[Span]) -> list[Step]:
        for span in sorted(spans, key=_when):
            if span.device == "host":
                self._host(span)
            else:
                self._device(span)
        return self._steps

    def _host(self, span: Span) -> None:
        place = ("host", span.stream)
        before = self._last_of.get(place)
        known = set() if before is None else {before}
        if self._ready_s(known) < span.start_s - TINY_S:
            known |= self._other_threads(span, self._ready_s(known))
        ready_s = self._ready_s(known)
        if ready_s < span.start_s - TINY_S:
            gap = Span("host", span.stream, "host", UNRECORDED, ready_s, span.start_s)
            known = {self._add(gap, ready_s, known)}
        awaited = {number for after in span.after for number in self._work[after]}
        start_s = span.start_s
        if span.kind == "wait" and awaited:
            start_s = min(span.end_s, max(start_s, self._ready_s(awaited)))
        number = self._add(span, start_s, known | awaited)
        if span.correlation:
            self._dispatches[span.correlation] = number

    def _other_threads(self, span: Span, since_s: float) -> set[int]:
        """The last steps of other host threads that ended meanwhile."""
        found = set()
        for (device, thread), number in self._last_of.items():
            if device == "host" and thread != span.stream:
                ended_s = self._steps[number].end_s
                if since_s < ended_s <= span.start_s + TINY_S:
                    found.add(number)
        return found

    def _device(self, span: Span) -> None:
        if span.correlation not in self._dispatches:
            raise ValueError(
                f"no dispatch queued {span.name!r} on {span.device} at {span.start_s} s: the "
                "dependencies of a run are known if all of it was recorded, with its hosts"
            )
        known = {self._dispatches[span.correlation]}
        last = self._last_of.get((span.device, span.stream))
        for after in span.after:
            known |= set(self._work[after])
        if last is not None:
            known.add(last)
        self._work[span.correlation].append(self._add(span, span.start_s, known))

    def _add(self, span: Span, start_s: float, before: set[int]) -> int:
        number = len(self._steps)
        self._steps.append(Step(span, start_s, span.end_s, tuple(sorted(before))))
        self._last_of[span.device, span.stream] = number
        return number

    def _ready_s(self, steps: Iterable[int]) -> float:
        return max((self._steps[number].end_s for number in steps), default=self._start_s)


def _when(span: Span) -> tuple[float, float, bool]:
    """Order in which all that comes before a span comes before it.

    A wait comes when it is over, after the work that ended then.
    """
    waits = span.kind == "wait"
    return span.end_s if waits else span.start_s, span.end_s, waits
