"""What an allocator counts of each pool and of both, by the names of `torch.cuda.memory_stats`.

Of what is free in split segments, `inactive_split`, only the numbers at which a program looks are
counted: it changes with each tensor, and is looked at rarely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

SMALL, LARGE = 0, 1
_POOLS = ("small_pool", "large_pool", "all")
_EVENTS = (
    *("num_alloc_retries", "num_ooms", "num_oom_rejections"),
    *("num_device_alloc", "num_device_free", "num_sync_all_streams"),
)

Row = tuple[str, int, int, int]  # a name, the number now, the most it was, how much it has grown


class Counts:
    """Of one pool, or of both; what is `awaiting` is freed, and still used by streams."""

    def __init__(self) -> None:
        self.allocations = self.awaiting = self.segments = 0
        self.allocated_bytes = self.awaiting_bytes = self.reserved_bytes = 0
        self.requested_bytes = 0  # of what is allocated, before it was rounded
        self._ever = self._ever_bytes = self._ever_requested_bytes = 0
        self._ever_segments = self._ever_reserved_bytes = 0
        self._split = {"inactive_split": [0, 0, 0], "inactive_split_bytes": [0, 0, 0]}
        self._peak = self._peak_active = self._peak_segments = 0
        self.peak_bytes = self._peak_active_bytes = self.peak_reserved_bytes = 0
        self._peak_requested_bytes = 0

    def take(self, size: int, requested: int) -> None:
        """Count an allocation of `size` bytes; so many were asked for."""
        self.allocations += 1
        self.allocated_bytes += size
        self.requested_bytes += requested
        self._ever += 1
        self._ever_bytes += size
        self._ever_requested_bytes += requested
        # Written out, as this runs for each tensor.
        if self.allocations > self._peak:
            self._peak = self.allocations
        if self.allocated_bytes > self.peak_bytes:
            self.peak_bytes = self.allocated_bytes
        if self.requested_bytes > self._peak_requested_bytes:
            self._peak_requested_bytes = self.requested_bytes
        if self.allocations + self.awaiting > self._peak_active:
            self._peak_active = self.allocations + self.awaiting
        if self.allocated_bytes + self.awaiting_bytes > self._peak_active_bytes:
            self._peak_active_bytes = self.allocated_bytes + self.awaiting_bytes

    def give_back(self, size: int, requested: int) -> None:
        """Count it no longer."""
        self.allocations -= 1
        self.allocated_bytes -= size
        self.requested_bytes -= requested

    def retain(self, size: int, blocks: int) -> None:
        """Count freed memory that streams still use; with `blocks` = -1 no longer."""
        self.awaiting += blocks
        self.awaiting_bytes += blocks * size

    def reserve(self, nbytes: int, segments: int) -> None:
        """Count what is taken from the device, and so many segments; less than zero: given back."""
        self.reserved_bytes += nbytes
        self.segments += segments
        if nbytes > 0:
            self._ever_reserved_bytes += nbytes
            self._ever_segments += segments
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
            self._peak_segments = max(self._peak_segments, self.segments)

    def see_split(self, sizes: Sequence[int]) -> None:
        """Count the free blocks of these sizes in split segments."""
        for seen, now in zip(self._split.values(), (len(sizes), sum(sizes)), strict=True):
            seen[:] = now, max(seen[1], now), seen[2] + max(0, now - seen[0])

    def reset_peaks(self) -> None:
        """Count peaks from what there is now."""
        for seen in self._split.values():
            seen[1] = seen[0]
        self._peak, self.peak_bytes = self.allocations, self.allocated_bytes
        self._peak_requested_bytes = self.requested_bytes
        self._peak_active = self.allocations + self.awaiting
        self._peak_active_bytes = self.allocated_bytes + self.awaiting_bytes
        self.peak_reserved_bytes, self._peak_segments = self.reserved_bytes, self.segments

    def rows(self) -> Iterator[Row]:
        """By torch's names."""
        active, active_bytes = self._peak_active, self._peak_active_bytes
        now = self.allocated_bytes + self.awaiting_bytes
        yield "allocation", self.allocations, self._peak, self._ever
        yield "allocated_bytes", self.allocated_bytes, self.peak_bytes, self._ever_bytes
        yield "active", self.allocations + self.awaiting, active, self._ever
        yield "active_bytes", now, active_bytes, self._ever_bytes
        requested = self._peak_requested_bytes, self._ever_requested_bytes
        yield "requested_bytes", self.requested_bytes, *requested
        reserved = self.peak_reserved_bytes, self._ever_reserved_bytes
        yield "reserved_bytes", self.reserved_bytes, *reserved
        yield "segment", self.segments, self._peak_segments, self._ever_segments
        yield from ((name, now, peak, ever) for name, (now, peak, ever) in self._split.items())


class Statistics:
    """All that an allocator counts."""

    def __init__(self) -> None:
        self.total = Counts()
        self._counts = (Counts(), Counts(), self.total)
        self.of = [(pool, self.total) for pool in self._counts[:2]]  # where a pool's changes count
        self.events = dict.fromkeys(_EVENTS, 0)
        self._base: dict[str, int] = {}  # what only grows, when it was reset

    def by_name(self, small: Sequence[int], large: Sequence[int]) -> dict[str, int]:
        """The numbers by torch's names, sorted by these; `small` and `large` are the sizes of free
        blocks in split segments."""
        for counts, sizes in zip(self._counts, (small, large, [*small, *large]), strict=True):
            counts.see_split(sizes)
        found = {**self._grown(), **dict(self._current()), "max_split_size": -1}
        for name in ("oversize_allocations", "oversize_segments"):  # only with a `max_split_size`
            found |= {f"{name}.{column}": 0 for column in ("current", "peak", "allocated", "freed")}
        return dict(sorted((name, n - self._base.get(name, 0)) for name, n in found.items()))

    def _current(self) -> Iterator[tuple[str, int]]:
        for pool, counts in zip(_POOLS, self._counts, strict=True):
            for name, now, peak, _ in counts.rows():
                yield from ((f"{name}.{pool}.current", now), (f"{name}.{pool}.peak", peak))

    def _grown(self) -> dict[str, int]:
        """What only grows."""
        found = dict(self.events)
        for pool, counts in zip(_POOLS, self._counts, strict=True):
            for name, now, _, ever in counts.rows():
                found |= {f"{name}.{pool}.allocated": ever, f"{name}.{pool}.freed": ever - now}
        return found

    def reset_peaks(self) -> None:
        """Count peaks from what there is now."""
        for counts in self._counts:
            counts.reset_peaks()

    def reset_accumulated(self) -> None:
        """Count from zero what only grows."""
        self._base = self._grown()
