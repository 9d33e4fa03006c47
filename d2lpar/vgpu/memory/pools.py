"""What is in use of the two pools of CUDA's caching allocator, and its statistics by their names.

Small allocations have segments of their own there. Here nothing is lost in segments, so what is
reserved and not in use has no pool; the statistics count it to the large one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

SMALL_BYTES = 2**20  # allocations up to this are of the small pool (c10's kSmallSize)
SMALL, LARGE = 0, 1


class Pool:
    """What the allocations of one pool take; `retained` is freed, and still used by streams."""

    def __init__(self) -> None:
        self.allocations = self.retained = 0
        self.allocated_bytes = self.retained_bytes = 0
        self.requested_bytes = 0  # of what is allocated, before it was rounded

    def current(self) -> dict[str, int]:
        """By the names of `torch.cuda.memory_stats`, but for what is reserved."""
        return {
            "allocation": self.allocations,
            "allocated_bytes": self.allocated_bytes,
            "active": self.allocations + self.retained,
            "active_bytes": self.allocated_bytes + self.retained_bytes,
            "requested_bytes": self.requested_bytes,
        }


def pool_of(nbytes: int) -> int:
    """Which pool an allocation of that size is from: `SMALL` or `LARGE`."""
    return LARGE if nbytes > SMALL_BYTES else SMALL


def current(pools: Sequence[Pool], reserved_bytes: int) -> Iterator[tuple[str, int]]:
    """Names and values of what `torch.cuda.memory_stats` says of now, for each pool and for all."""
    by_pool = [pool.current() for pool in pools]
    by_pool[SMALL]["reserved_bytes"] = by_pool[SMALL]["active_bytes"]
    by_pool[LARGE]["reserved_bytes"] = reserved_bytes - by_pool[SMALL]["active_bytes"]
    for name, small in by_pool[SMALL].items():
        large = by_pool[LARGE][name]
        for pool, value in (("all", small + large), ("small_pool", small), ("large_pool", large)):
            yield f"{name}.{pool}.current", value
