"""How fast a device reads and writes: from its memory, or from its cache if all of it fits.

Results that were just written, and operands that are read again, are in the cache that all
multiprocessors share ("L2"), as long as not much else came between. A kernel whose data take half
of it or less finds all there; of more the share falls in a straight line, to nothing at one and a
half times the cache: other data are in it, too, and addresses that fall together displace others.
"""

from __future__ import annotations

from typing import NamedTuple

from ....machines.hardware import GIGA, Accelerator
from ..constants import CACHE_EFFICIENCY, MEMORY_EFFICIENCY, READ_EFFICIENCY

# Bytes a second that a multiprocessor's share of the cache sends: 2048 bytes a cycle on the V100
# of 80 multiprocessors, 5120 on the A100 of 108 (Krashinsky et al., NVIDIA Ampere Architecture
# In-Depth, 2020), 3133, 7219 and on the H100 of 132 8986 GB/s in all (Kunz et al. 2023,
# doi 10.1016/j.ultsonch.2023.106546, table 3). Blackwell's taken as Hopper's; others as Volta's.
_CACHE_BYTES_PER_S = {"ampere": 67 * GIGA, "hopper": 68 * GIGA, "blackwell": 68 * GIGA}
OTHER_CACHE_BYTES_PER_S = 39 * GIGA

# In these the cache has two partitions, each for the multiprocessors beside it, and data that lie
# behind the other one are in both (NVIDIA A100 Tensor Core GPU Architecture, 2020, "L2 cache"):
# blocks that look at the same rows twice have half of it. On A100 a softmax of 16,384 × 32,768 in
# fp32 reads rows three times from memory, although 216 of them have but 28 MB (Liger-Kernel).
_PARTITIONED = ("A30", "A100", "H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB")

ALL_FITS, NOTHING_FITS = 0.5, 1.5  # data, as a multiple of the cache


class ReadAgain(NamedTuple):
    """What a kernel reads a second time, and what it has moved since the first time.

    Either each block its own `block_bytes`, and so many blocks as share a multiprocessor are
    between; or, without such a number, all of them what they share, after `block_bytes` of it and
    of others. What the cache has of that is read while memory brings the rest.
    """

    bytes: int
    block_bytes: int
    blocks_together: int = 0


class MemoryRates:
    """Bytes a second of one accelerator; measured rates are reached already."""

    def __init__(self, accelerator: Accelerator) -> None:
        peak = accelerator.memory_bytes_per_s
        measured = accelerator.measured
        reached = 1.0 if measured else accelerator.reached.get("memory", MEMORY_EFFICIENCY)
        self.bytes_per_s = peak * reached
        self.read_bytes_per_s = peak if measured else peak * max(reached, READ_EFFICIENCY)
        self.cache_bytes_per_s = self.bytes_per_s
        share = _CACHE_BYTES_PER_S.get(accelerator.architecture, OTHER_CACHE_BYTES_PER_S)
        self._of_one = None if measured else share * CACHE_EFFICIENCY
        self._cache_bytes = None if measured else accelerator.l2_bytes
        self._copies = 2 if accelerator.name.startswith(_PARTITIONED) else 1
        self._multiprocessors = accelerator.multiprocessors or 0
        if self._cache_bytes and accelerator.multiprocessors:
            reached = share * accelerator.multiprocessors * CACHE_EFFICIENCY
            self.cache_bytes_per_s = max(reached, self.bytes_per_s)

    def seconds(
        self, nbytes: int, blocks: int | None = None, again: ReadAgain | None = None
    ) -> float:
        """How long a kernel takes to read and write so many bytes, some of them `again`.

        Few blocks are on as few multiprocessors, each of which reaches its share of the cache's
        rate and no more.
        """
        cached = nbytes * self.cached_share(nbytes)
        all_s = cached / self.cache_bytes_per_s + (nbytes - cached) / self.bytes_per_s
        if again is not None:
            cached_s, missed_s = self._again_s(again)
            all_s += missed_s
            all_s = all_s + cached_s if again.blocks_together else max(all_s, cached_s)
            nbytes += again.bytes if again.blocks_together else 0
        if blocks is None or self._of_one is None:
            return all_s
        return max(all_s, nbytes / (max(blocks, 1) * self._of_one))

    def _again_s(self, again: ReadAgain) -> tuple[float, float]:
        """How long it takes to read that from the cache, and from memory, if the device is full of
        blocks: those find in the cache what they have read before, as far as all of theirs fits.
        Where rates were measured, it is taken that kernels need no second look.
        """
        if self._of_one is None:
            return 0.0, 0.0
        blocks = self._multiprocessors * again.blocks_together
        share = self.cached_share(self._copies * max(blocks, 1) * again.block_bytes)
        cached = again.bytes * share
        return cached / self.cache_bytes_per_s, (again.bytes - cached) / self.bytes_per_s

    def cached_share(self, nbytes: int) -> float:
        """Share of so many bytes that are in the cache, 0 to 1."""
        if not self._cache_bytes:
            return 0.0
        fits = (NOTHING_FITS - nbytes / self._cache_bytes) / (NOTHING_FITS - ALL_FITS)
        return min(max(fits, 0.0), 1.0)
