"""Memory that was freed while streams named by `record_stream` still use it.

As in PyTorch's caching allocator: it counts as allocated no longer, but can be given to nobody
before what these streams had queued is done; a device that is full waits for that.
"""

from __future__ import annotations

from collections.abc import Callable

from ..races import sync_debug
from ..sim.clock import Clock, HostThread
from ..sim.event_queue import QueuedWork
from .caching_allocator import Allocation, CachingAllocator
from .segments import Block


class _Freed:
    __slots__ = ("block", "events", "streams")

    def __init__(self, block: Block, streams: set[int]) -> None:
        self.block = block
        self.streams = streams
        self.events: dict[int, QueuedWork] | None = None  # by the numbers of its streams


class DeferredFrees:
    """Those of one device. `submit(device, action, *args)` runs `action(host_thread, *args)` in
    order."""

    def __init__(
        self, index: int, memory: CachingAllocator, clock: Clock, submit: Callable[..., None]
    ) -> None:
        self._index = index
        self._memory = memory
        self._clock = clock
        self._submit = submit
        self._blocks: list[_Freed] = []

    def freed(self, allocation: Allocation) -> None:
        """Keep freed memory back. Its events are recorded by the next `collect`: memory is freed
        at any time, also while the clock is being moved."""
        if allocation.recorded and allocation.block is not None:
            self._blocks.append(_Freed(allocation.block, allocation.recorded))

    def collect(self) -> bool:
        """Give back what is used no more; whether anything is still retained."""
        if self._blocks:
            self._submit(self._index, self._collect)
        return bool(self._blocks)

    def wait(self) -> None:
        """Let the host wait until all is used no more."""
        wait = sync_debug.listened(self._index, "wait for freed memory", self._wait)
        awaited = list(self._blocks)
        self._submit(self._index, wait, awaited)
        self._drop(awaited)

    def _collect(self, host_thread: HostThread) -> None:
        """A stream does its work in order: of one that is not done with a block, no later event is
        asked for, as each question lets all other hosts go on first."""
        recorded = [(freed, self._events(host_thread, freed)) for freed in self._blocks]
        busy: set[int] = set()
        over = []
        for freed, events in recorded:
            busy.update(
                number
                for number, event in events.items()
                if number not in busy and not self._clock.is_done(host_thread, event)
            )
            if busy.isdisjoint(events):
                over.append(freed)
        self._drop(over)

    def _events(self, host_thread: HostThread, freed: _Freed) -> dict[int, QueuedWork]:
        """When its streams are done with a block, recorded the first time that it is asked for."""
        if freed.events is None:
            freed.events = {
                number: self._clock.record_event(host_thread, (self._index, number))
                for number in sorted(freed.streams)
            }
        return freed.events

    def _wait(self, host_thread: HostThread, blocks: list[_Freed]) -> None:
        for freed in blocks:
            for event in self._events(host_thread, freed).values():
                self._clock.wait_for(host_thread, event, "wait for freed memory")

    def _drop(self, over: list[_Freed]) -> None:
        for freed in over:
            if freed in self._blocks:
                self._blocks.remove(freed)
                self._memory.complete(freed.block)
