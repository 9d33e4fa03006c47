"""What a caching allocator takes from the device, and the blocks that it splits this into.

As by PyTorch (c10/cuda/CUDACachingAllocator.cpp): small allocations share segments of 2 MiB, larger
ones below 10 MiB such of 20 MiB, and others have one of their own, in multiples of 2 MiB. A request
gets the smallest free block of its stream that is large enough; blocks that become free are joined
with free neighbours. A segment can be given back when all of it is free; what is free of others is
lost in fragments, as long as no request fits into it.

Expandable segments (`PYTORCH_ALLOC_CONF=expandable_segments:True`) are ranges of addresses,
one for each stream and pool, of which pages are mapped as they are needed, and unmapped wherever
they are free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from .statistics import SMALL

GRANULE_BYTES = 512  # kMinBlockSize: allocations are multiples of it
SMALL_BYTES = 2**20  # kSmallSize: allocations up to this are of the small pool
_SMALL_SEGMENT_BYTES = 2 * 2**20  # kSmallBuffer
_LARGE_SEGMENT_BYTES = 20 * 2**20  # kLargeBuffer
_OWN_SEGMENT_FROM_BYTES = 10 * 2**20  # kMinLargeAlloc
_ROUND_BYTES = 2 * 2**20  # kRoundLarge


_ADDRESSES = 1 << 50  # of a device; made up


class AddressSpace:
    """Addresses for what is taken from one device; none is given twice."""

    def __init__(self, device: int) -> None:
        self._next = (device + 1) * _ADDRESSES

    def place(self, nbytes: int) -> int:
        """The address of so many bytes."""
        self._next += nbytes
        return self._next - nbytes


def segment_bytes(size: int) -> int:
    """What is taken from the device for an allocation of that size, if none of the cache fits."""
    if size <= SMALL_BYTES:
        return _SMALL_SEGMENT_BYTES
    if size < _OWN_SEGMENT_FROM_BYTES:
        return _LARGE_SEGMENT_BYTES
    return -(-size // _ROUND_BYTES) * _ROUND_BYTES


class Block:
    """A part of a segment, between the `previous` and the `next` one.

    It is `free`; or an allocation has it, for which `requested` bytes were asked, with the `stack`
    that did so if a history is recorded; or streams still use it (`awaiting`). Of an `expandable`
    segment it may be not `mapped`.
    """

    __slots__ = (
        *("address", "awaiting", "expandable", "free", "mapped", "next", "pool", "previous"),
        *("requested", "size", "stack", "stream"),
    )

    def __init__(
        self, pool: BlockPool, address: int, size: int, stream: int, *, expandable: bool = False
    ) -> None:
        self.pool, self.address, self.size, self.stream = pool, address, size, stream
        self.expandable, self.mapped = expandable, not expandable
        self.previous: Block | None = None
        self.next: Block | None = None
        self.free, self.awaiting, self.requested = False, False, 0
        self.stack: Any = ()

    @property
    def is_split(self) -> bool:
        """Whether it is not the whole segment."""
        return self.previous is not None or self.next is not None

    @property
    def is_lost(self) -> bool:
        """Whether it is free and cannot be given back; free pages always can."""
        return self.free and self.is_split and not self.expandable

    def cut(self, size: int) -> Block:
        """Keep so many bytes; the rest, which is new."""
        rest = Block(self.pool, self.address + size, self.size - size, self.stream)
        rest.expandable, rest.mapped, self.size = self.expandable, self.mapped, size
        rest.previous, rest.next, self.next = self, self.next, rest
        if rest.next is not None:
            rest.next.previous = rest
        return rest

    def absorb_next(self) -> None:
        """Become one with the block behind it."""
        other = self.next
        assert other is not None, "there is one"
        self.size += other.size
        self.next = other.next
        if self.next is not None:
            self.next.previous = self


class BlockPool:
    """Blocks of one kind, small or large: the segments by their addresses, and what of them is
    free, by streams."""

    def __init__(self, which: int, space: AddressSpace) -> None:
        self.which = which
        self._space = space
        self.kept = False  # by a graph, which writes there
        self.segments: dict[int, Block] = {}  # their first blocks
        self._free: defaultdict[int, list[tuple[int, int, Block]]] = defaultdict(list)

    def take(self, size: int, stream: int) -> Block | None:
        """A free block of that stream: the smallest that is large enough."""
        free = self._free[stream]
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        if free[at][2].expandable:  # what can grow is kept for what needs it
            while at + 1 < len(free) and _grown(free[at + 1][2]) < _grown(free[at][2]):
                at += 1
        block = free.pop(at)[2]
        self._split(block, size)
        return block

    def add(self, size: int, nbytes: int, stream: int) -> Block:
        """A block of that size, the first of a new segment of `nbytes`."""
        block = Block(self, self._space.place(nbytes), nbytes, stream)
        self.segments[block.address] = block
        self._split(block, size)
        return block

    def _split(self, block: Block, size: int) -> None:
        """Let a block that is free no longer have that size, unless the rest is too small."""
        block.free = False
        if block.size - size > (0 if block.expandable or self.which == SMALL else SMALL_BYTES):
            self._insert(block.cut(size))

    def give(self, block: Block) -> Block:
        """Let a block be free, joined with what is free beside it: what that becomes."""
        after, before = block.next, block.previous
        if after is not None and after.free:
            self._remove(after)
            block.absorb_next()
        if before is not None and before.free:
            self._remove(before)
            block = before
            block.absorb_next()
        self._insert(block)
        return block

    def _insert(self, block: Block) -> None:
        block.free, block.stack, block.requested = True, (), 0
        insort(self._free[block.stream], (block.size, block.address, block))

    def _remove(self, block: Block) -> None:
        free = self._free[block.stream]
        del free[bisect_left(free, (block.size, block.address))]

    def release(self, give_back: Callable[[Block], None]) -> None:
        """Give back segments that are all free, and free pages of expandable ones."""
        for block in [each for free in self._free.values() for *_, each in free]:
            if block.expandable:
                self._unmap(block, give_back)
            elif not block.is_split:
                self._remove(block)
                del self.segments[block.address]
                give_back(block)

    # --- expandable segments ------------------------------------------------------------------

    @property
    def page_bytes(self) -> int:
        """What is mapped at once, at least."""
        return _SMALL_SEGMENT_BYTES if self.which == SMALL else _LARGE_SEGMENT_BYTES

    def expandable(self, size: int, stream: int) -> tuple[Block, int] | None:
        """Where pages can be mapped for a block of that size, at the lowest address, and how many
        bytes."""
        for first in self.segments.values():
            for block in parts(first) if first.expandable and first.stream == stream else ():
                before = block.previous
                there = before.size if before is not None and before.free else 0
                if not block.mapped and there + block.size >= size:
                    return block, -(-(size - there) // self.page_bytes) * self.page_bytes
        return None

    def add_range(self, nbytes: int, stream: int) -> None:
        """Have a new range of addresses for that many bytes at least, of which nothing is
        mapped."""
        nbytes = -(-nbytes // self.page_bytes) * self.page_bytes
        address = self._space.place(nbytes)
        self.segments[address] = Block(self, address, nbytes, stream, expandable=True)

    def map(self, block: Block, nbytes: int, size: int) -> Block:
        """A block of `size`, for which `nbytes` are mapped at the begin of this one."""
        if block.size > nbytes:
            block.cut(nbytes)
        block.mapped = True
        block = self.give(block)
        self._remove(block)
        self._split(block, size)
        return block

    def _unmap(self, block: Block, give_back: Callable[[Block], None]) -> None:
        first = block
        while first.previous is not None:
            first = first.previous
        before = (first.address - block.address) % self.page_bytes  # of a page that is in use
        nbytes = (block.size - before) // self.page_bytes * self.page_bytes
        if nbytes <= 0:
            return
        self._remove(block)
        if before:
            front, block = block, block.cut(before)
            self._insert(front)
        if block.size > nbytes:
            self._insert(block.cut(nbytes))
        block.free = block.mapped = False
        give_back(block)
        if block.next is not None and not block.next.mapped:
            block.absorb_next()
        if block.previous is not None and not block.previous.mapped:
            block = block.previous
            block.absorb_next()
        if not block.is_split:
            del self.segments[block.address]


def _grown(block: Block) -> int:
    """Its size, with the addresses behind it to which pages can be mapped."""
    behind = block.next
    return block.size + (0 if behind is None or behind.mapped else behind.size)


def parts(first: Block) -> Iterator[Block]:
    """The blocks of a segment."""
    block: Block | None = first
    while block is not None:
        yield block
        block = block.next
