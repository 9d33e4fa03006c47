"""Memory that graphs keep: what a capture had in use, and others may not have.

As by PyTorch, a capture allocates from private pools: what the program lets go of is given to later
tensors of the capture, and of others that share the pools; the segments stay with the graphs, whose
replays write there, as long as one of them lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..signals import closed_to_handlers
from ..sim.clock import StreamKey
from .caching_allocator import CachingAllocator


class GraphPool:
    """What graphs that share a pool keep of these memories, as long as one of them lives."""

    def __init__(self, memories: Sequence[CachingAllocator]) -> None:
        self._pools = [(memory, memory.graph_pools()) for memory in memories]

    @contextmanager
    def capturing(self, is_captured: Callable[[StreamKey], bool]) -> Iterator[None]:
        """A block in which tensors of streams that are captured take memory of the pool."""
        begun = [
            (memory, (lambda stream, device=memory.device: is_captured((device, stream)), pools))
            for memory, pools in self._pools
        ]
        for memory, capture in begun:
            memory.captures = [*memory.captures, capture]
        try:
            yield
        finally:
            for memory, capture in begun:
                memory.captures = [each for each in memory.captures if each is not capture]

    @closed_to_handlers
    def __del__(self) -> None:
        for _, pools in self._pools:
            for pool in pools:
                pool.kept = False


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
