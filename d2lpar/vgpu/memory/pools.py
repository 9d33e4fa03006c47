"""What is in use of the two pools of CUDA's caching allocator, and its statistics by their names.

Small allocations have segments of their own there. Here nothing is lost in segments, so what is
reserved and not in use has no pool; the statistics count it to the large one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SMALL_BYTES = 2**20  # allocations up to this are of the small pool (c10's kSmallSize)
SMALL, LARGE = 0, 1

NAMES = ("small_pool", "large_pool", "all")  # of pools in the statistics


class Metric(NamedTuple):
    """A number of now, the most that it was, and by how much it has ever grown and shrunk."""

    current: int
    peak: int
    allocated: int

    @property
    def freed(self) -> int:
        """What has shrunk is what has grown, and is there no more."""
        return self.allocated - self.current

    def columns(self) -> Iterator[tuple[str, int]]:
        """The numbers by torch's names."""
        yield from (("current", self.current), ("peak", self.peak))
        yield from (("allocated", self.allocated), ("freed", self.freed))


NOTHING = Metric(0, 0, 0)


class Peaks(NamedTuple):
    """The most of each at once, since they were reset; "active" counts what is retained, too."""

    allocations: int
    allocated_bytes: int
    active: int
    active_bytes: int
    requested_bytes: int


class Pool:
    """What the allocations of one pool take; `retained` is freed, and still used by streams."""

    def __init__(self) -> None:
        self.allocations = self.retained = 0
        self.allocated_bytes = self.retained_bytes = 0
        self.requested_bytes = 0  # of what is allocated, before it was rounded
        self._ever = self._ever_bytes = self._ever_requested_bytes = 0
        self._peak_allocations = self._peak_active = 0
        self._peak_bytes = self._peak_active_bytes = self._peak_requested_bytes = 0

    def take(self, size: int, requested: int) -> None:
        """Count an allocation of `size` bytes; so many were asked for."""
        self.allocations += 1
        self.allocated_bytes += size
        self.requested_bytes += requested
        self._ever += 1
        self._ever_bytes += size
        self._ever_requested_bytes += requested
        # Written out, as this runs for each tensor.
        if self.allocations > self._peak_allocations:
            self._peak_allocations = self.allocations
        if self.allocated_bytes > self._peak_bytes:
            self._peak_bytes = self.allocated_bytes
        if self.requested_bytes > self._peak_requested_bytes:
            self._peak_requested_bytes = self.requested_bytes
        if self.allocations + self.retained > self._peak_active:
            self._peak_active = self.allocations + self.retained
        if self.allocated_bytes + self.retained_bytes > self._peak_active_bytes:
            self._peak_active_bytes = self.allocated_bytes + self.retained_bytes

    def give_back(self, size: int, requested: int) -> None:
        """Count it no longer."""
        self.allocations -= 1
        self.allocated_bytes -= size
        self.requested_bytes -= requested

    def retain(self, nbytes: int, blocks: int) -> None:
        """Count freed memory that streams still use; with `blocks` = -1 no longer."""
        self.retained += blocks
        self.retained_bytes += blocks * nbytes

    def release(self) -> None:
        """Retain nothing any more."""
        self.retained = self.retained_bytes = 0

    @property
    def active_bytes(self) -> int:
        """What is allocated or retained."""
        return self.allocated_bytes + self.retained_bytes

    def reset_peaks(self) -> None:
        """Count peaks from what there is now."""
        active = self.allocations + self.retained
        self.peaks = Peaks(
            self.allocations, self.allocated_bytes, active, self.active_bytes, self.requested_bytes
        )

    @property
    def peaks(self) -> Peaks:
        """All peaks."""
        return Peaks(
            self._peak_allocations,
            self._peak_bytes,
            self._peak_active,
            self._peak_active_bytes,
            self._peak_requested_bytes,
        )

    @peaks.setter
    def peaks(self, peaks: Peaks) -> None:
        self._peak_allocations, self._peak_bytes = peaks.allocations, peaks.allocated_bytes
        self._peak_active, self._peak_active_bytes = peaks.active, peaks.active_bytes
        self._peak_requested_bytes = peaks.requested_bytes

    def metrics(self) -> dict[str, Metric]:
        """By the names of `torch.cuda.memory_stats`, but for what is reserved."""
        peaks, ever, ever_bytes = self.peaks, self._ever, self._ever_bytes
        return {
            "allocation": Metric(self.allocations, peaks.allocations, ever),
            "allocated_bytes": Metric(self.allocated_bytes, peaks.allocated_bytes, ever_bytes),
            "active": Metric(self.allocations + self.retained, peaks.active, ever),
            "active_bytes": Metric(self.active_bytes, peaks.active_bytes, ever_bytes),
            "requested_bytes": Metric(
                self.requested_bytes, peaks.requested_bytes, self._ever_requested_bytes
            ),
            # As in PyTorch's expandable segments, whose pages are counted and no segments, and
            # which leave no rest of a block that could not be given back.
            "segment": NOTHING,
            "inactive_split": NOTHING,
            "inactive_split_bytes": NOTHING,
        }


def pool_of(nbytes: int) -> int:
    """Which pool an allocation of that size is from: `SMALL` or `LARGE`."""
    return LARGE if nbytes > SMALL_BYTES else SMALL


def reserved_of_pools(small: Metric, reserved: Metric, peak_large: int) -> Sequence[Metric]:
    """What is reserved for the small pool, the large one, and both.

    Memory that was given back to the large pool by the small one has grown the former.
    """
    grown_large = reserved.allocated + small.freed
    return small, Metric(reserved.current - small.current, peak_large, grown_large), reserved


def statistics(pools: Sequence[Pool], reserved: Sequence[Metric]) -> Iterator[tuple[str, int]]:
    """Names and values of `torch.cuda.memory_stats`, but for events; in the order of `NAMES`."""
    for name, pool, of_pool in zip(NAMES, pools, reserved, strict=True):
        for key, metric in {**pool.metrics(), "reserved_bytes": of_pool}.items():
            for column, value in metric.columns():
                yield f"{key}.{name}.{column}", value
    for key in ("oversize_allocations", "oversize_segments"):  # only with a `max_split_size`
        for column, value in NOTHING.columns():
            yield f"{key}.{column}", value
