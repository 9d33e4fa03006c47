"""A process has memory of its own on a device: its peaks are not others', and it leaves nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .caching_allocator import CachingAllocator


@contextmanager
def of_processes(memories: Sequence[CachingAllocator]) -> Iterator[None]:
    """Let processes run in the block that use these memories.

    Peaks count from its beginning, and are what they were at its end. Tensors that only cycles hold
    then are freed, as the system frees what a process had, and so is what was cached for it.
    """
    before = [(memory.peaks, memory.allocated_bytes) for memory in memories]
    for memory in memories:
        memory.reset_peak()
    try:
        yield
    finally:
        if any(m.allocated_bytes > held for m, (_, held) in zip(memories, before, strict=True)):
            gc.collect()
        for memory, (peaks, _) in zip(memories, before, strict=True):
            memory.empty_cache()
            memory.peaks = peaks
