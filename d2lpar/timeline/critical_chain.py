"""Why a run took as long as it did: the chain of spans that its end had to wait for.

The walk goes back from what ended last, at each step to the span whose end let this one start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from .spans import Span


def critical_path(spans: Sequence[Span], *, slack_s: float = 0.0) -> list[Span]:
    """The chain of spans that explains the end of the last one, in the order of time.

    Before a span comes what ended last before it started. Among several that ended then, it is the
    one that the span has most to do with: the work before it on its stream, its own dispatch, the
    same engine, a copy to its device, anything. Work on its stream and its dispatch come first
    even if they ended `slack_s` seconds before the start, as on real devices, where starting takes
    time. Waiting explains nothing: in place of a wait of the host stands the work that ended it,
    and of the wait only what was left when that work had ended.
    """
    return _Walk(spans, slack_s).path()


class _Walk:
    """Spans ranked by their ends, waits after the work that ended then, and indices over them.

    Each step goes to a lower rank, so that spans without length cannot lead in a circle.
    """

    def __init__(self, spans: Sequence[Span], slack_s: float) -> None:
        self.spans = sorted(spans, key=lambda s: (s.end_s, s.kind == "wait", s.start_s))
        self.slack_s = slack_s
        self.ends = [span.end_s for span in self.spans]
        self.streams: dict[tuple, list[int]] = defaultdict(list)
        self.on_devices: list[int] = []
        self.dispatches: dict[int, int] = {}
        for rank, span in enumerate(self.spans):
            self.streams[span.device, span.stream].append(rank)
            if span.device != "host":
                self.on_devices.append(rank)
            elif span.correlation:
                self.dispatches[span.correlation] = rank

    def path(self) -> list[Span]:
        chain: list[Span] = []
        rank = len(self.spans) - 1
        while rank >= 0:
            span = self.spans[rank]
            awaited = self._awaited(rank) if span.kind == "wait" else -1
            if awaited >= 0:
                if self.ends[awaited] < span.end_s:
                    chain.append(replace(span, start_s=self.ends[awaited]))
                rank = awaited
            else:
                chain.append(span)
                rank = self._before(rank)
        return chain[::-1]

    def _awaited(self, wait: int) -> int:
        """The work on a device that ended last while the host waited; -1 if none did."""
        found = _last_below(wait, self.on_devices)
        return found if found >= 0 and self.ends[found] > self.spans[wait].start_s else -1

    def _before(self, rank: int) -> int:
        """What this span had to wait for; -1 if it is the first."""
        span = self.spans[rank]
        limit = min(rank, bisect_right(self.ends, span.start_s))
        if limit == 0:
            return -1
        known = _last_below(limit, self.streams[span.device, span.stream])
        dispatch = self.dispatches.get(span.correlation, -1) if span.device != "host" else -1
        if dispatch < limit and (known < 0 or self._ended_s(dispatch) > self.ends[known]):
            known = dispatch
        last_s = self.ends[limit - 1]
        if known >= 0 and self.ends[known] >= min(last_s, span.start_s - self.slack_s):
            return known
        first = bisect_left(self.ends, last_s)
        return max(range(limit - 1, first - 1, -1), key=lambda i: _relation(self.spans[i], span))

    def _ended_s(self, rank: int) -> float:
        return self.ends[rank] if rank >= 0 else float("-inf")


def _relation(before: Span, span: Span) -> int:
    """How much two spans have to do with each other, apart from their streams and dispatch."""
    if before.kind == "wait":
        return 0
    return 3 if before.device == span.device else 2 if before.target == span.device else 1


def _last_below(limit: int, ranks: list[int]) -> int:
    at = bisect_left(ranks, limit) - 1
    return ranks[at] if at >= 0 else -1
