"""Recording runs of any length: timelines that forget, or write to a file, what they are given."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from . import MemorySample, Span, Timeline
from .inputs import Index, require
from .traces.trace import TraceWriter


class LongTimeline(Timeline):
    """A timeline with the last `keep` spans (and samples of memory, and annotations); the other
    spans are summed up.

    With `to`, a path (see `trace`), all of them are written there as they come; `keep` is then 0
    unless it is given. The file is complete, and `spans` a list, when the timeline is closed.
    Raises ValueError for a `keep` below 0.
    """

    def __init__(
        self, clock: str, *, keep: int | None = None, to: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(clock)
        keep = 0 if keep is None else keep
        require("record", Index, keep=keep)
        self._keep = keep
        self.spans = deque(maxlen=keep)
        self.memory = deque(maxlen=keep)
        self.annotations = deque(maxlen=keep)
        self._writer = None if to is None else TraceWriter(to, clock)

    def add(self, span: Span) -> None:
        """Note a span; the oldest is summed up if there are too many."""
        if self._writer is not None:
            self._writer.add(span)
        if len(self.spans) == self._keep:
            self.dropped.add(self.spans[0] if self.spans else span)
        super().add(span)

    def add_memory(self, sample: MemorySample) -> None:
        """Note a sample of memory; the oldest is forgotten if there are too many."""
        if self._writer is not None:
            self._writer.add_memory(sample)
        super().add_memory(sample)

    def add_annotation(self, span: Span) -> None:
        """Note an annotation; the oldest is forgotten if there are too many."""
        if self._writer is not None:
            self._writer.add(span)
        super().add_annotation(span)

    def close(self) -> None:
        """Make lists of what was kept, and complete the file."""
        self.spans, self.memory = list(self.spans), list(self.memory)
        self.annotations = list(self.annotations)
        if self._writer is not None:
            self._writer.close()


@contextmanager
def recording(
    clock: str, *, keep: int | None = None, to: str | os.PathLike[str] | None = None
) -> Iterator[Timeline]:
    """A timeline to fill in the block: a `LongTimeline` if `keep` or `to` is given.

    Raises ValueError for a negative `keep`, OSError if the file cannot be written.
    """
    if keep is None and to is None:
        yield Timeline(clock)
        return
    timeline = LongTimeline(clock, keep=keep, to=to)
    try:
        yield timeline
    finally:
        timeline.close()
