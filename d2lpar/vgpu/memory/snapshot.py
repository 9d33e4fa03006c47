"""What an allocator holds, in the form of `torch.cuda.memory._snapshot`.

Memory is laid out as by PyTorch's expandable segments, where pages are mapped only under what is in
use: neighbouring blocks of a stream make up a segment. What is reserved beside them is one more
segment, all of it inactive. So the sums over segments are those that `memory_stats` gives.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from .addresses import AddressSpace
from .caching_allocator import CachingAllocator, allocations
from .memory_history import Stack, frames_of
from .pools import SMALL, pool_of

USED, AWAITING, FREE = "active_allocated", "active_awaiting_free", "inactive"


class _Block(NamedTuple):
    address: int
    size: int
    requested: int
    stream: int
    state: str
    stack: Stack = ()


def segments(memory: CachingAllocator) -> list[dict[str, Any]]:
    """The segments of one device, by address."""
    with memory.lock:
        blocks = sorted(_blocks(memory))
        reserved = memory.reserved_bytes
    runs: list[list[_Block]] = []
    for block in blocks:
        last = runs[-1][-1] if runs else None
        if last is not None and _continues(last, block):
            runs[-1].append(block)
        else:
            runs.append([block])
    left = reserved - sum(block.size for block in blocks)
    if left > 0:
        top = blocks[-1].address + blocks[-1].size if blocks else AddressSpace(memory.device).top
        runs.append([_Block(top, left, 0, 0, FREE)])
    return [_segment(memory.device, run) for run in runs]


def _continues(last: _Block, block: _Block) -> bool:
    """Whether a block is of the same segment as the one before it."""
    after = (last.address + last.size, last.stream, pool_of(last.size))
    return after == (block.address, block.stream, pool_of(block.size))


def _blocks(memory: CachingAllocator) -> list[_Block]:
    """What is in use, and what was freed and still may be."""
    history = memory.history
    space = AddressSpace(memory.device) if history is None else history.space
    found = []
    for held in allocations(memory):
        if held.nbytes:
            address = space.place(held.nbytes) if history is None else held.address
            assert address is not None, "all that is there when a history begins has an address"
            found.append(
                _Block(address, held.nbytes, held.requested_bytes, held.stream, USED, held.stack)
            )
    awaiting = {} if history is None else history.awaiting
    found += [
        _Block(*freed[:4], AWAITING, freed.stack)  # in the same order
        for freed in awaiting.values()
    ]
    for which, pool in enumerate(memory.pools):
        known = [freed.nbytes for freed in awaiting.values() if pool_of(freed.nbytes) == which]
        unknown = pool.retained_bytes - sum(known)
        if unknown > 0:  # freed before there was a history
            found.append(_Block(space.place(unknown), unknown, unknown, 0, AWAITING))
    return found


def _segment(device: int, blocks: list[_Block]) -> dict[str, Any]:
    sizes = {
        state: sum(block.size for block in group)
        for state, group in groupby(sorted(blocks, key=_state), key=_state)
    }
    total = sum(sizes.values())
    active = total - sizes.get(FREE, 0)
    return {
        "device": device,
        "address": blocks[0].address,
        "total_size": total,
        "allocated_size": sizes.get(USED, 0),
        "active_size": active,
        "requested_size": sum(block.requested for block in blocks if block.state == USED),
        "stream": blocks[0].stream,
        "segment_type": "small" if _is_small(blocks) else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": block.state,
                "frames": frames_of(block.stack),
            }
            for block in blocks
        ],
    }


def _is_small(blocks: list[_Block]) -> bool:
    """Whether they are of the small pool; what is reserved and free is of the large one."""
    return all(block.state != FREE and pool_of(block.size) == SMALL for block in blocks)


def _state(block: _Block) -> str:
    return block.state
