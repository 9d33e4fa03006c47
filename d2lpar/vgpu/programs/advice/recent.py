"""The last that a run has done, of which as much is kept as its advice and its page need."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ....timeline import Span, Timeline
from ....timeline.intervals import union

FEW, MANY = 20_000, 100_000  # spans: some steps, and what a page shows
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 60


class RecentTimeline(Timeline):
    """A timeline that forgets all but its last spans, and samples of memory."""

    def __init__(self, clock: str, kept: int, *, samples_memory: bool) -> None:
        super().__init__(clock, deque(maxlen=kept), deque(maxlen=kept))
        self.samples_memory = samples_memory
        self.added = 0

    def add(self, span: Span) -> None:
        """Keep a span, and count it."""
        self.added += 1
        self.spans.append(span)

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
