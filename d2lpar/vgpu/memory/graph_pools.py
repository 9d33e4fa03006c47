"""Memory that graphs keep: what a capture had in use, and others may not have.

As in PyTorch's private pools, tensors of a capture are freed when the program lets go of them, so
that later ones of the capture take their place. The device's memory stays with the graph: replays
write there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .caching_allocator import CachingAllocator


class GraphPool:
    """What graphs that share a pool keep of these memories, as long as one of them lives."""

    def __init__(self, memories: Sequence[CachingAllocator]) -> None:
        self._memories = memories
        self._kept_bytes = [0 for _ in memories]

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """A block whose tensors take what the pool keeps, and leave it more if they need more."""
        before = [memory.peaks for memory in self._memories]
        room = [
            memory.total.active_bytes + kept
            for memory, kept in zip(self._memories, self._kept_bytes, strict=True)
        ]
        self._release()
        for memory in self._memories:
            memory.reset_peak()
        try:
            yield
        finally:
            for i, memory in enumerate(self._memories):
                peaks = memory.peaks
                most = max(room[i], memory.total.peaks.active_bytes)
                memory.peaks = before[i]
                memory.raise_peaks(peaks)
                self._kept_bytes[i] = most - memory.total.active_bytes
                memory.keep(self._kept_bytes[i])

    def _release(self) -> None:
        for i, memory in enumerate(self._memories):
            memory.keep(-self._kept_bytes[i])
            self._kept_bytes[i] = 0

    def __del__(self) -> None:
        self._release()


@contextmanager
def uncounted(memories: Sequence[CachingAllocator]) -> Iterator[None]:
    """A block whose tensors take memory that graphs keep already."""
    for memory in memories:
        memory.counts = False
    try:
        yield
    finally:
        for memory in memories:
            memory.counts = True
