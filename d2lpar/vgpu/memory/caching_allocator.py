"""What the tensors of each virtual device occupy, counted by storage.

As with PyTorch's caching allocator, memory that Python frees is allocated no longer, but stays
reserved until `empty_cache`, or until the device is full; it is given to later tensors of the
stream that it was made for (`segments`).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

import torch

from ...timeline.formatting import bytes_text
from ..device_naming import text
from ..races.call_sites import Mark
from ..races.tracked import History
from ..races.vector_clock import Access
from ..signals import closed_to_handlers
from . import oom_report
from .allocator_settings import is_expandable
from .memory_history import MemoryHistory, Stack
from .segments import (
    GRANULE_BYTES,
    SMALL_BYTES,
    AddressSpace,
    Block,
    BlockPool,
    parts,
    segment_bytes,
)
from .statistics import LARGE, SMALL, Statistics

Pools = tuple[BlockPool, BlockPool]  # the small and the large one
Returned = TypeVar("Returned")
Change = tuple[int, int]  # the id of an allocation, and how many bytes it takes more than before


class OutOfMemoryError(torch.OutOfMemoryError):
    """A virtual device cannot hold another tensor; says asked, free, capacity, and what is held.

    Sizes are in bytes; `help` is what follows them in the message. `allowed_bytes` is the part of
    the capacity that the process may use, if it has limited itself.
    """

    def __init__(
        self,
        device: int,
        asked_bytes: int,
        free_bytes: int,
        capacity_bytes: int,
        help: str,
        allowed_bytes: int | None = None,
    ) -> None:
        self.device, self.help = device, help
        self.asked_bytes, self.free_bytes = asked_bytes, free_bytes
        self.capacity_bytes, self.allowed_bytes = capacity_bytes, allowed_bytes
        limit = "" if allowed_bytes is None else f"; {bytes_text(allowed_bytes)} are allowed"
        super().__init__(
            f"{text(device)} is out of memory. Tried to allocate {bytes_text(asked_bytes)}; "
            f"{bytes_text(free_bytes)} of {bytes_text(capacity_bytes)} are free{limit}. {help}"
        )

    def __reduce__(self) -> tuple:
        sizes = (self.asked_bytes, self.free_bytes, self.capacity_bytes)
        return _out_of_memory, (self.device, *sizes, self.help, self.allowed_bytes)


OutOfMemoryError.__module__ = (
    torch.__name__
)  # as tracebacks of programs, and who reads them, know it


def _out_of_memory(*args: int | str | None) -> OutOfMemoryError:
    """One that was pickled: by its name torch's own class would be found."""
    return OutOfMemoryError(*args)  # type: ignore[arg-type]


def _undisturbed(method: Callable[..., Returned]) -> Callable[..., Returned]:
    """A method within which pools are as it leaves them: what a collection of garbage frees
    meanwhile is freed after it. The lock is for replicas, which are threads."""

    @closed_to_handlers
    @wraps(method)
    def undisturbed(self: CachingAllocator, *args: Any, **kwargs: Any) -> Returned:
        with self.lock:
            outer, self._busy = self._busy, True
            try:
                return method(self, *args, **kwargs)
            finally:
                self._busy = outer
                if self._freed:
                    self._settle()

    return undisturbed


class CachingAllocator:
    """The memory of device number `device`, in bytes; tensors may use `limit_bytes` of the
    capacity, of which CUDA itself has `context_bytes`."""

    def __init__(self, device: int, capacity_bytes: int, context_bytes: int = 0) -> None:
        self.device = device
        self.capacity_bytes = capacity_bytes
        self.context_bytes = context_bytes
        self.limit_bytes = capacity_bytes
        self.highest_bytes = 0  # programs reset peaks, and this is for who runs them
        self.statistics = Statistics()
        self.counts = True  # whether new allocations take memory: those of replays have it
        # What a device's streams may still do with freed memory is the business of the runtime:
        # `on_free` is told of allocations that end and were used on several streams, `on_allocate`
        # of a new one's size and stream; `retry` waits until what is retained is free, and
        # `catch_up` until exchanges have let go of what their ranks hold no more.
        self.on_free: Callable[[Allocation], None] | None = None
        self.on_allocate: Callable[[int, int], None] | None = None
        self.retry: Callable[[], None] | None = None
        self.catch_up: Callable[[], None] | None = None
        # Told how much this process is about to hold, tells what others hold of the device.
        self.beside: Callable[[int], int] | None = None
        self.others_bytes = 0
        self.history: MemoryHistory | None = None  # while a program records it
        self.changes: list[Change] | None = None  # while somebody follows them
        # Is told of what was asked for in vain, and what is free, in bytes.
        self.on_out_of_memory: Callable[[int, int], None] | None = None
        self.lock = threading.RLock()
        self._busy = False  # whether pools are being changed
        self._freed: list[tuple[Block, bool, Stack]] = []  # meanwhile
        self._retained: set[Block] = set()
        self._space = AddressSpace(device)
        self._own_pools = BlockPool(SMALL, self._space), BlockPool(LARGE, self._space)
        self._graph_pools: list[BlockPool] = []
        # Graphs that are captured: whether a stream is part of one, and where its blocks are from.
        self.captures: list[tuple[Callable[[int], bool], Pools]] = []

    def graph_pools(self) -> Pools:
        """Two more, small and large, of which nothing is given back as long as they are `kept`."""
        pools = BlockPool(SMALL, self._space), BlockPool(LARGE, self._space)
        for pool in pools:
            pool.kept = True
        left = [pool for pool in self._graph_pools if pool.kept or pool.segments]
        self._graph_pools = [*left, *pools]
        return pools

    def allocate(self, nbytes: int, stream: int = 0) -> Allocation:
        """Room for a storage of `nbytes`, given back when the allocation is dropped.

        It belongs to the device's stream of that number. Raises OutOfMemoryError.
        """
        size = -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES if self.counts else 0
        if self.on_allocate is not None:
            self.on_allocate(size, stream)
        allocation = Allocation(self, stream, nbytes)
        if size and not self._find(size, allocation):  # CUDA allocates nothing for an empty tensor
            self._make_room(size, allocation)
        if self.changes is not None:
            self.changes.append((id(allocation), allocation.nbytes))
        return allocation

    def _find(self, size: int, allocation: Allocation) -> bool:
        """Give it a block of the cache, or of a new segment; False if the device has no room."""
        with self.lock:  # if busy all the same, a finalizer makes a tensor amid a change
            is_found = not self._busy and self._take(size, allocation)
        return is_found or self._extend(size, allocation)

    @_undisturbed
    def _take(self, size: int, allocation: Allocation) -> bool:
        block = self._pool(size, allocation.stream).take(size, allocation.stream)
        return block is not None and self._begin(block, allocation)

    def _pool(self, size: int, stream: int) -> BlockPool:
        """Where a block of that size for that stream is from."""
        for is_captured, pools in self.captures:
            if is_captured(stream):
                return pools[size > SMALL_BYTES]
        return self._own_pools[size > SMALL_BYTES]

    def _extend(self, size: int, allocation: Allocation) -> bool:
        """Give it a block of a new segment, or of new pages, if the device has them."""
        if self.beside is not None:  # others may go on meanwhile, so without the lock
            self._tell(segment_bytes(size))
        is_there = self._extended(size, allocation)
        if self.beside is not None and is_expandable():
            self._tell()
        return is_there

    @_undisturbed
    def _extended(self, size: int, allocation: Allocation) -> bool:
        pool, nbytes = self._pool(size, allocation.stream), segment_bytes(size)
        if is_expandable():
            return self._mapped(pool, size, allocation)
        if nbytes > self.free_bytes:
            return False
        block = pool.add(size, nbytes, allocation.stream)
        self._took(block, block.address, nbytes)
        return self._begin(block, allocation)

    def _mapped(self, pool: BlockPool, size: int, allocation: Allocation) -> bool:
        place = pool.expandable(size, allocation.stream)
        if place is None and size <= self.capacity_bytes:
            pool.add_range(self.capacity_bytes * 9 // 8, allocation.stream)
            place = pool.expandable(size, allocation.stream)
        if place is None or place[1] > self.free_bytes:
            return False
        address = place[0].address
        block = pool.map(*place, size)
        self._took(block, address, place[1])
        return self._begin(block, allocation)

    def _took(self, block: Block, address: int, nbytes: int) -> None:
        """Count what was taken from the device, there, for the sake of a block."""
        self.statistics.events["num_device_alloc"] += 1
        for counts in self.statistics.of[block.pool.which]:
            counts.reserve(nbytes, 0 if block.expandable else 1)
        if self.history is not None:
            self.history.taken(address, nbytes, block.stream, expandable=block.expandable)

    def _begin(self, block: Block, allocation: Allocation) -> bool:
        """Count a block that is the allocation's from now on."""
        block.requested = allocation.requested_bytes
        allocation.block, allocation.nbytes = block, block.size
        for counts in self.statistics.of[block.pool.which]:
            counts.take(block.size, block.requested)
        if self.allocated_bytes > self.highest_bytes:
            self.highest_bytes = self.allocated_bytes
        if self.history is not None:
            self.history.allocated(block)
        return True

    def free(self, allocation: Allocation) -> None:
        """Take a block back; if streams still use it, only `complete` lets others have it."""
        if self.changes is not None:
            self.changes.append((id(allocation), -allocation.nbytes))
        with self.lock:
            retained = False
            if self.on_free is not None and (allocation.history or allocation.recorded):
                self.on_free(allocation)
                retained = bool(allocation.recorded)
            if allocation.block is not None:
                stack = () if self.history is None else self.history.stack_of_free()
                self._freed.append((allocation.block, retained, stack))
                if not self._busy:
                    self._settle()

    def _settle(self) -> None:
        """End what was freed while pools were being changed."""
        while self._freed and not self._busy:
            self._busy = True
            try:
                while self._freed:
                    self._end(*self._freed.pop(0))
            finally:
                self._busy = False

    def _end(self, block: Block, retained: bool, stack: Stack) -> None:
        for counts in self.statistics.of[block.pool.which]:
            counts.give_back(block.size, block.requested)
        if self.history is not None:
            self.history.freed(block, stack)
        if retained:
            block.awaiting = True
            self._retained.add(block)
            self._count_retained(block, 1)
        else:
            self._complete(block)

    def _count_retained(self, block: Block, blocks: int) -> None:
        for counts in self.statistics.of[block.pool.which]:
            counts.retain(block.size, blocks)

    @_undisturbed
    def complete(self, block: Block) -> None:
        """Let others have a block that streams still used."""
        if block in self._retained:
            self._retained.remove(block)
            self._count_retained(block, -1)
            self._complete(block)

    def _complete(self, block: Block) -> None:
        block.awaiting = False
        if self.history is not None:
            self.history.completed(block)
        block.pool.give(block)

    def _make_room(self, size: int, allocation: Allocation) -> None:
        """Wait for what other streams still use, and give back what is cached, as the allocator
        does before it gives up."""
        if self.catch_up is not None:
            self.catch_up()
            if self._find(size, allocation):
                return
        with self.lock:
            is_amid_a_change = self._busy
        if not self.captures and not is_amid_a_change:
            self.empty_cache()
            self.statistics.events["num_alloc_retries"] += 1
            if self._extend(size, allocation):
                return
        raise self._out_of_memory(segment_bytes(size), allocation.stream)

    def _out_of_memory(self, asked: int, stream: int) -> OutOfMemoryError:
        self.look_beside()
        free = max(self.device_free_bytes, 0)
        self.statistics.events["num_ooms"] += 1
        if self.history is not None:
            self.history.out_of_memory(asked, free, stream)
        if self.on_out_of_memory is not None:
            self.on_out_of_memory(asked, free)
        return OutOfMemoryError(
            self.device,
            asked,
            free,
            self.capacity_bytes,
            self._advice(asked),
            self.limit_bytes if self.limit_bytes < self.capacity_bytes else None,
        )

    def _advice(self, asked: int) -> str:
        """What holds the memory, and what may help."""
        held = oom_report.describe(self, allocations(self))
        lines = [f"What holds the most:\n{held}\n"] if held else []
        lost = sum(block.size for blocks in self.blocks() for block in blocks if block.is_lost)
        if lost and self.free_bytes + lost >= asked:
            lines.append(
                f"{bytes_text(lost)} more are free, but in fragments of segments that are in use: "
                "the setting PYTORCH_ALLOC_CONF=expandable_segments:True avoids most of them. "
            )
        return "".join(lines) + (
            "Use a smaller batch or model, or split the model over more devices."
        )

    def hand_over(self, capacity_bytes: int, context_bytes: int) -> None:
        """Go on as the memory of another machine's device; what tensors hold stays held."""
        self.capacity_bytes = self.limit_bytes = capacity_bytes
        self.context_bytes = context_bytes
        self.on_free = self.on_allocate = self.retry = self.catch_up = None
        self.history = self.on_out_of_memory = None
        for block in list(self._retained):
            self.complete(block)
        self._release()
        self.reset_peak()

    # --- what is in use and what is reserved --------------------------------------------------

    @property
    def allocated_bytes(self) -> int:
        """What tensors have."""
        return self.statistics.total.allocated_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that tensors had at once since `reset_peak`."""
        return self.statistics.total.peak_bytes

    @property
    def reserved_bytes(self) -> int:
        """What the caching allocator keeps for itself."""
        return self.statistics.total.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was reserved at once since `reset_peak`."""
        return self.statistics.total.peak_reserved_bytes

    @property
    def device_free_bytes(self) -> int:
        """What nobody has of the device; below zero if its new machine has less."""
        held = self.context_bytes + self.reserved_bytes + self.others_bytes
        return self.capacity_bytes - held

    @property
    def free_bytes(self) -> int:
        """What this process may still take."""
        return min(self.device_free_bytes, self.limit_bytes - self.reserved_bytes)

    def look_beside(self) -> None:
        """Find out what other processes hold of the device, and tell what this one does."""
        if self.beside is not None:
            self._tell()

    def _tell(self, more_bytes: int = 0) -> None:
        """Tell others what this process holds, or is about to; what CUDA takes, once it does."""
        assert self.beside is not None
        held = self.reserved_bytes + more_bytes
        uses = more_bytes or self.statistics.events["num_device_alloc"]
        self.others_bytes = self.beside(held + self.context_bytes if uses else 0)

    def empty_cache(self) -> None:
        """Wait for what other streams still use, unless a graph is captured, and give back segments
        of which nothing is in use."""
        self.statistics.events["num_sync_all_streams"] += 1
        if self._retained and self.retry is not None and not self.captures:
            self.retry()
        self._release()
        self.look_beside()

    @_undisturbed
    def _release(self) -> None:
        for pool in (*self._own_pools, *self._graph_pools):
            if not pool.kept:
                pool.release(self._gave_back)

    def _gave_back(self, block: Block) -> None:
        self.statistics.events["num_device_free"] += 1
        for counts in self.statistics.of[block.pool.which]:
            counts.reserve(-block.size, 0 if block.expandable else -1)
        if self.history is not None:
            self.history.given_back(block, CachingAllocator.empty_cache.__code__)

    @_undisturbed
    def blocks(self) -> list[list[Block]]:
        """The blocks of each segment, by address."""
        pools = (*self._own_pools, *self._graph_pools)
        firsts = {at: first for pool in pools for at, first in pool.segments.items()}
        return [list(parts(first)) for _, first in sorted(firsts.items())]

    @_undisturbed
    def look(self, at: Callable[[list[list[Block]]], Returned]) -> Returned:
        """What is made of the blocks of each segment, which stay as they are meanwhile."""
        return at(self.blocks())

    @_undisturbed
    def stats(self) -> dict[str, int]:
        """Numbers of the allocator, named as those of `torch.cuda.memory_stats`."""
        lost: tuple[list[int], list[int]] = [], []
        for block in chain.from_iterable(self.blocks()):
            if block.is_lost:
                lost[block.pool.which].append(block.size)
        return self.statistics.by_name(*lost)

    def reset_peak(self) -> None:
        """Count all peaks from what is held now."""
        self.statistics.reset_peaks()


class Allocation:
    """One storage's share of a device's memory; a tensor and its views hold the same one.

    `nbytes` it takes, those of its `block`, of which `requested_bytes` were asked for. `stream` is
    the number of the stream that it was made for, `made` the place in the code.
    `written` and `reads` are the last write and read; `history` tells of several streams, once
    there are; `parts` says that tensors use parts of it; `recorded` are the streams that
    `record_stream` has named, `awaited` the tensors that functional collectives fill meanwhile.

    What compiled code makes may take no memory yet: `deferred_bytes` are those that it takes when
    something else uses it. Till then it can be computed again, from its `sources`.
    """

    __slots__ = (
        "__weakref__",
        "awaited",
        "block",
        "deferred_bytes",
        "history",
        "made",
        "memory",
        "nbytes",
        "parts",
        "reads",
        "recorded",
        "requested_bytes",
        "sources",
        "stream",
        "written",
    )

    @closed_to_handlers
    def __init__(self, memory: CachingAllocator, stream: int, requested_bytes: int) -> None:
        self.memory = memory
        self.block: Block | None = None
        self.nbytes = 0
        self.requested_bytes = requested_bytes
        self.stream = stream
        self.made: Mark | None = None
        self.written: Access | None = None
        self.reads: Access | None = None
        self.history: History | None = None
        self.parts = False
        self.recorded: set[int] | None = None
        self.awaited: list[object] | None = None
        self.deferred_bytes = 0
        self.sources: tuple[Allocation, ...] = ()

    def defer(self, nbytes: int, sources: tuple[Allocation, ...]) -> None:
        """Take `nbytes` only when somebody calls `materialize`; the sources live as long."""
        self.deferred_bytes, self.sources = nbytes, sources

    def materialize(self) -> None:
        """Take the memory that was deferred. OutOfMemoryError."""
        if self.deferred_bytes:
            self.grow(self.deferred_bytes)
            self.deferred_bytes = 0
        self.sources = ()

    def used_by(self, stream: int) -> None:
        """Once freed, wait for what this stream of the device has queued by then."""
        if stream != self.stream:
            self.recorded = (self.recorded or set()) | {stream}

    def grow(self, nbytes: int) -> None:
        """Become as large as that, as if new memory took the place of this. OutOfMemoryError."""
        new = self.memory.allocate(nbytes, self.stream)
        self._exchange(new, ("block", "nbytes", "requested_bytes"))

    def replace(self, nbytes: int, stream: int) -> None:
        """Become new memory of `nbytes` for that stream, as a storage that is resized does on CUDA.

        The old memory is freed, with all that is known of its uses. OutOfMemoryError.
        """
        self._exchange(self.memory.allocate(nbytes, stream), _OF_MEMORY)

    @closed_to_handlers
    def _exchange(self, other: Allocation, names: Sequence[str]) -> None:
        if self.memory.changes is not None:
            pair = ((self, other), (other, self))
            self.memory.changes += [(id(one), -one.nbytes) for one, _ in pair]
            self.memory.changes += [(id(one), new.nbytes) for one, new in pair]
        for name in names:
            mine, others = getattr(self, name), getattr(other, name)
            setattr(self, name, others)
            setattr(other, name, mine)

    @closed_to_handlers
    def __del__(self) -> None:
        self.memory.free(self)


_OF_MEMORY = [name for name in Allocation.__slots__ if name not in ("__weakref__", "memory")]


def allocations(memory: CachingAllocator) -> list[Allocation]:
    """Those that have memory now, found by the garbage collector: nobody keeps a list of them."""
    found = [thing for thing in gc.get_objects() if type(thing) is Allocation]
    return [one for one in found if one.memory is memory and one.block is not None]
