"""The last that a run has done, of which as much is kept as its advice and its page need."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from ....timeline import Span, Timeline
from ....timeline.intervals import union

MANY = 100_000  # spans: what a page shows, and what advice rests on
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 60


class RecentTimeline(Timeline):
    """A timeline that forgets all but its last spans, and samples of memory."""

    def __init__(self, clock: str, kept: int, *, samples_memory: bool) -> None:
        super().__init__(clock, deque(maxlen=kept), deque(maxlen=kept))
        self.samples_memory = samples_memory
        self.added = 0
        self._kept = kept
        self.dropped_s = -math.inf  # until when what was forgotten lasted

    def add(self, span: Span) -> None:
        """Keep a span, and count it."""
        self.added += 1
        if len(self.spans) == self._kept:
            self.dropped_s = max(self.dropped_s, self.spans[0].end_s)
        self.spans.append(span)

    @property
    def whole_since_s(self) -> float:
        """Since when all that devices and hosts did is kept. What a device did is not, without the
        dispatch that queued it, which may be much older."""
        queued = {span.correlation for span in self.spans if span.device == "host"}
        lacking_s = (
            span.end_s
            for span in self.spans
            if span.device != "host" and span.correlation not in queued
        )
        return max([self.dropped_s, *lacking_s])

    def add_annotation(self, span: Span) -> None:
        """Keep none."""


def blocks(spans: Sequence[Span], window_s: tuple[float, float], columns: int = COLUMNS) -> str:
    """How busy a device is: a block for each part of the window, as high as it computes there."""
    start_s, end_s = window_s
    part_s = (end_s - start_s) / columns or 1.0
    busy_s = [0.0] * columns
    for low_s, high_s in union(spans):
        first = max(0, int((low_s - start_s) / part_s))
        last = min(columns - 1, int((high_s - start_s) / part_s))
        for i in range(first, last + 1):
            part_start_s = start_s + i * part_s
            common_s = min(high_s, part_start_s + part_s) - max(low_s, part_start_s)
            busy_s[i] += max(0.0, common_s)
    return "".join(BLOCKS[min(7, int(8 * each / part_s))] for each in busy_s)
