"""What an allocator holds, in the form of `torch.cuda.memory._snapshot`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from .caching_allocator import CachingAllocator
from .memory_history import frames_of
from .segments import Block
from .statistics import SMALL

USED, AWAITING, FREE = "active_allocated", "active_awaiting_free", "inactive"


def segments(memory: CachingAllocator) -> list[dict[str, Any]]:
    """The segments of one device, by address; of an expandable one what is mapped, piece by
    piece."""
    return memory.look(
        lambda found: [
            _segment(memory.device, part) for blocks in found for part in _mapped(blocks)
        ]
    )


def _mapped(blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
    for mapped, run in groupby(blocks, key=lambda block: block.mapped):
        if mapped:
            yield list(run)


def _segment(device: int, blocks: Sequence[Block]) -> dict[str, Any]:
    first = blocks[0]
    active = [block for block in blocks if not block.free]
    return {
        "device": device,
        "address": first.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in active if not block.awaiting),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": first.stream,
        "segment_type": "small" if first.pool.which == SMALL else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": first.expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": FREE if block.free else AWAITING if block.awaiting else USED,
                "frames": frames_of(block.stack),
            }
            for block in blocks
        ],
    }
