"""Recording runs of any length: timelines that write to a file what they are given."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from . import MemorySample, Span, Timeline
from .traces.trace import TraceWriter


class StreamedTimeline(Timeline):
    """A timeline that writes to a file (see `trace`) as things come, sums up its spans, and keeps
    nothing else. The file is complete when it is closed."""

    def __init__(self, clock: str, to: str | os.PathLike[str]) -> None:
        super().__init__(clock, deque(maxlen=0), deque(maxlen=0), deque(maxlen=0))
        self._writer = TraceWriter(to, clock)

    def add(self, span: Span) -> None:
        """Note a span."""
        self._writer.add(span)
        self.dropped.add(span)
        super().add(span)

    def add_memory(self, sample: MemorySample) -> None:
        """Note a sample of memory."""
        self._writer.add_memory(sample)

    def add_annotation(self, span: Span) -> None:
        """Note an annotation."""
        self._writer.add(span)

    def close(self) -> None:
        """Complete the file."""
        self.spans, self.memory, self.annotations = [], [], []
        self._writer.close()


@contextmanager
def recording(clock: str, *, to: str | os.PathLike[str] | None = None) -> Iterator[Timeline]:
    """A timeline to fill in the block: a `StreamedTimeline` if `to` is given.

    Raises OSError if the file cannot be written.
    """
    if to is None:
        yield Timeline(clock)
        return
    timeline = StreamedTimeline(clock, to)
    try:
        yield timeline
    finally:
        timeline.close()
