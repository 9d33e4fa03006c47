"""What the tensors of each virtual device occupy, counted by storage.

The caching allocator of PyTorch is modelled as far as programs can tell: memory that Python frees
is allocated no longer, but stays reserved until `empty_cache`; it is given to later tensors of the
stream that it was made for. Nothing is lost in fragments. So what is reserved is the most that was
in use at once since the cache was emptied, in blocks of 2 MB.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence

import torch

from ...timeline.formatting import bytes_text
from ..device_naming import text
from ..races.call_sites import Mark
from ..races.tracked import History
from ..races.vector_clock import Access
from . import oom_report
from .memory_history import MemoryHistory, Stack
from .pools import SMALL, SMALL_BYTES, Metric, Peaks, Pool, reserved_of_pools, statistics

GRANULE_BYTES = 512  # CUDA's caching allocator hands out multiples of this
BLOCK_BYTES = 2 * 2**20  # and takes multiples of this from the device


Change = tuple[int, int]  # the id of an allocation, and how many bytes it takes more than before
AllPeaks = tuple[list[Peaks], tuple[int, int]]

# What is counted. As memory is reserved as a whole here, it is taken from the device when that has
# to grow, and given back by `empty_cache`, where CUDA may do so segment by segment.
_EVENTS = (
    *("num_alloc_retries", "num_ooms", "num_oom_rejections"),
    *("num_device_alloc", "num_device_free", "num_sync_all_streams"),
)


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


class CachingAllocator:
    """The memory of device number `device`, in bytes; `limit_bytes` of the capacity may be used."""

    def __init__(self, device: int, capacity_bytes: int) -> None:
        self.device = device
        self.capacity_bytes = capacity_bytes
        self.limit_bytes = capacity_bytes
        self.highest_bytes = 0  # programs reset peaks, and this is for who runs them
        self.pools = (Pool(), Pool())  # the small and the large one
        self.total = Pool()  # both together
        self._counts = (*self.pools, self.total)
        self.kept_bytes = 0  # by graphs, beside what is allocated
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
        # Replicas are threads; and a collection of garbage may free tensors inside `allocate`.
        self.lock = threading.RLock()
        self._most_bytes = 0  # allocated or retained at once since the cache was emptied
        self._peak_reserved_bytes = self._peak_reserved_large_bytes = 0
        # The least that the small pool has had in use since the rest was looked at.
        self._least_small_bytes = 0
        self._reserved_total_bytes = 0
        self._events = dict.fromkeys(_EVENTS, 0)
        self._base: dict[str, int] = {}  # statistics when they were reset

    def allocate(self, nbytes: int, stream: int = 0) -> Allocation:
        """Room for a storage of `nbytes`, given back when the allocation is dropped.

        It belongs to the device's stream of that number. Raises OutOfMemoryError.
        """
        size = -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES if self.counts else 0
        if self.on_allocate is not None:
            self.on_allocate(size, stream)
        if self.beside is not None and self.active_bytes + size > self._most_bytes:
            self.others_bytes = self.beside(self.active_bytes + size)
        if size > self.free_bytes:
            self._make_room(size, stream)  # others may go on meanwhile, so without the lock
        with self.lock:
            if size:  # CUDA allocates nothing for an empty tensor
                self.total.take(size, nbytes)
                self.pools[size > SMALL_BYTES].take(size, nbytes)
            if self.total.allocated_bytes > self.highest_bytes:
                self.highest_bytes = self.total.allocated_bytes
            if self.active_bytes > self._most_bytes:
                self._reserve(self.active_bytes)
        allocation = Allocation(self, size, stream, nbytes)
        if self.changes is not None:
            self.changes.append((id(allocation), size))
        if self.history is not None:
            with self.lock:
                self.history.allocated(allocation)
        return allocation

    def discount(self, allocation: Allocation) -> None:
        """Count an allocation no longer."""
        size = allocation.nbytes
        if self.changes is not None:
            self.changes.append((id(allocation), -size))
        if size:
            self.total.give_back(size, allocation.requested_bytes)
            pool = self.pools[size > SMALL_BYTES]
            pool.give_back(size, allocation.requested_bytes)
            small = self.pools[SMALL]
            if pool is small and small.active_bytes < self._least_small_bytes:
                self._least_small_bytes = small.active_bytes

    def retain(self, nbytes: int, blocks: int = 1) -> None:
        """Count freed memory that streams still use; with `blocks` = -1 no longer."""
        self.total.retain(nbytes, blocks)
        self.pools[nbytes > SMALL_BYTES].retain(nbytes, blocks)

    def keep(self, nbytes: int) -> None:
        """Keep memory for graphs; give it back if it is less than zero bytes."""
        with self.lock:
            self.kept_bytes += nbytes
            if self.active_bytes > self._most_bytes:
                self._reserve(self.active_bytes)

    @property
    def active_bytes(self) -> int:
        """What nobody else may have: allocated, retained, or kept for graphs."""
        return self.total.active_bytes + self.kept_bytes

    @property
    def allocated_bytes(self) -> int:
        """What tensors have."""
        return self.total.allocated_bytes

    @property
    def retained_bytes(self) -> int:
        """What was freed, and is in use on a stream that `record_stream` has named."""
        return self.total.retained_bytes

    @property
    def allocations(self) -> int:
        """How many there are."""
        return self.total.allocations

    def _make_room(self, size: int, stream: int) -> None:
        """Wait for what other streams still use, as the allocator does before it gives up."""
        if self.catch_up is not None:
            self.catch_up()
        if self.retained_bytes and self.retry is not None:
            self._events["num_alloc_retries"] += 1
            self._events["num_sync_all_streams"] += 1
            self.retry()
        free = self.free_bytes
        if size > free:
            self._events["num_ooms"] += 1
            if self.history is not None:
                self.history.out_of_memory(size, max(free, 0), stream)
            if self.on_out_of_memory is not None:
                self.on_out_of_memory(size, max(free, 0))
            help_ = (
                f"{self._describe()}Use a smaller batch or model, or split the model over more "
                "devices."
            )
            beside = self.capacity_bytes - self.limit_bytes  # free, and not for this process
            allowed = self.limit_bytes if beside else None
            raise OutOfMemoryError(
                self.device, size, max(free + beside, 0), self.capacity_bytes, help_, allowed
            )

    def _describe(self) -> str:
        held = oom_report.describe(self, allocations(self))
        return f"What holds the most:\n{held}\n" if held else ""

    def hand_over(self, capacity_bytes: int) -> None:
        """Go on as the memory of another machine's device; what tensors hold stays held."""
        self.capacity_bytes = self.limit_bytes = capacity_bytes
        self.on_free = self.on_allocate = self.retry = self.catch_up = None
        self.history = self.on_out_of_memory = None
        for pool in self._counts:
            pool.release()
        self.reset_peak()

    # --- what is reserved ---------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """What may still be allocated; below zero if a new limit is less than what is held."""
        return self.limit_bytes - self.active_bytes - self.others_bytes

    def look_beside(self) -> None:
        """Find out what other processes hold of the device, and tell what this one does."""
        if self.beside is not None:
            self.others_bytes = self.beside(self._most_bytes)

    @property
    def reserved_bytes(self) -> int:
        """What the caching allocator keeps for itself."""
        return min(-(-self._most_bytes // BLOCK_BYTES) * BLOCK_BYTES, self.limit_bytes)

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was reserved at once since `reset_peak`."""
        return max(self._peak_reserved_bytes, self.reserved_bytes)

    def _reserve(self, nbytes: int) -> None:
        before = self.reserved_bytes
        self._note_large()
        self._most_bytes = nbytes
        grown = self.reserved_bytes - before
        self._reserved_total_bytes += grown
        self._events["num_device_alloc"] += grown > 0
        if grown and self.history is not None:
            self.history.taken(before, before + grown)

    def empty_cache(self) -> None:
        """Give back what is reserved and holds no tensor."""
        with self.lock:
            self._peak_reserved_bytes = self.peak_reserved_bytes
            self._note_large()
            before = self.reserved_bytes
            self._most_bytes = self.active_bytes
            self.look_beside()
            self._events["num_sync_all_streams"] += 1
            now = self.reserved_bytes
            self._events["num_device_free"] += now < before
            if now < before and self.history is not None:
                self.history.given_back(before, now, CachingAllocator.empty_cache.__code__)

    def _note_large(self) -> None:
        """Note what the small pool has left to the large one, before what is reserved changes."""
        left = self.reserved_bytes - self._least_small_bytes
        self._peak_reserved_large_bytes = max(self._peak_reserved_large_bytes, left)
        self._least_small_bytes = self.pools[SMALL].active_bytes

    # --- statistics ---------------------------------------------------------------------------

    @property
    def peak_bytes(self) -> int:
        """The most that tensors had at once since `reset_peak`."""
        return self.total.peaks.allocated_bytes

    def reset_peak(self) -> None:
        """Count all peaks from what is held now."""
        for pool in self._counts:
            pool.reset_peaks()
        self._peak_reserved_bytes = self.reserved_bytes
        self._least_small_bytes = self.pools[SMALL].active_bytes
        self._peak_reserved_large_bytes = self.reserved_bytes - self._least_small_bytes

    @property
    def peaks(self) -> AllPeaks:
        """The peaks of each pool and of both, and of what is reserved: for both, for large ones."""
        self._note_large()
        of_pools = [pool.peaks for pool in self._counts]
        return of_pools, (self.peak_reserved_bytes, self._peak_reserved_large_bytes)

    @peaks.setter
    def peaks(self, peaks: AllPeaks) -> None:
        self.reset_peak()  # no peak is below what is held
        self.raise_peaks(peaks)

    def raise_peaks(self, peaks: AllPeaks) -> None:
        """Let no peak be below these."""
        of_pools, reserved = peaks
        for pool, before in zip(self._counts, of_pools, strict=True):
            pool.peaks = Peaks(*map(max, pool.peaks, before))
        self._peak_reserved_bytes = max(self._peak_reserved_bytes, reserved[0])
        self._peak_reserved_large_bytes = max(self._peak_reserved_large_bytes, reserved[1])

    def reset_accumulated(self) -> None:
        """Let `stats` count what only ever grows from now on."""
        self._base = {}
        accumulated = self.stats()
        self._base = {name: n for name, n in accumulated.items() if _only_grows(name)}

    def stats(self) -> dict[str, int]:
        """Numbers of the allocator, named as those of `torch.cuda.memory_stats`."""
        with self.lock:
            self._note_large()
            found = {
                **dict(statistics(self._counts, self._reserved())),
                **self._events,
                "max_split_size": -1,  # there is none: a block of any size may be split
            }
        return {name: n - self._base.get(name, 0) for name, n in sorted(found.items())}

    def _reserved(self) -> Sequence[Metric]:
        small = self.pools[SMALL].metrics()["active_bytes"]
        both = Metric(self.reserved_bytes, self.peak_reserved_bytes, self._reserved_total_bytes)
        return reserved_of_pools(small, both, self._peak_reserved_large_bytes)


def _only_grows(statistic: str) -> bool:
    return statistic.startswith("num_") or statistic.endswith((".allocated", ".freed"))


class Allocation:
    """One storage's share of a device's memory; a tensor and its views hold the same one.

    `nbytes` it takes, of which `requested_bytes` were asked for. While a history is recorded, it
    has an `address` and the `stack` that has made it. `stream` is the number of the stream that it
    was made for, `made` the place in the code.
    `written` and `reads` are the last write and read; `history` tells of several streams, once
    there are; `parts` says that tensors use parts of it; `recorded` are the streams that
    `record_stream` has named, `awaited` the tensors that functional collectives fill meanwhile.

    What compiled code makes may take no memory yet: `deferred_bytes` are those that it takes when
    something else uses it. Till then it can be computed again, from its `sources`.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "awaited",
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
        "stack",
        "stream",
        "written",
    )

    def __init__(
        self, memory: CachingAllocator, nbytes: int, stream: int, requested_bytes: int
    ) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self.requested_bytes = requested_bytes
        self.address: int | None = None
        self.stack: Stack = ()
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
        self._exchange(new, ("nbytes", "requested_bytes", "address", "stack"))

    def replace(self, nbytes: int, stream: int) -> None:
        """Become new memory of `nbytes` for that stream, as a storage that is resized does on CUDA.

        The old memory is freed, with all that is known of its uses. OutOfMemoryError.
        """
        self._exchange(self.memory.allocate(nbytes, stream), _OF_MEMORY)

    def _exchange(self, other: Allocation, names: Sequence[str]) -> None:
        if self.memory.changes is not None:
            pair = ((self, other), (other, self))
            self.memory.changes += [(id(one), -one.nbytes) for one, _ in pair]
            self.memory.changes += [(id(one), new.nbytes) for one, new in pair]
        for name in names:
            mine, others = getattr(self, name), getattr(other, name)
            setattr(self, name, others)
            setattr(other, name, mine)

    def __del__(self) -> None:
        memory = self.memory
        with memory.lock:
            memory.discount(self)
            if memory.on_free is not None and (self.history or self.recorded):
                memory.on_free(self)
            if memory.history is not None:
                retained = memory.on_free is not None and bool(self.recorded)
                memory.history.freed(self, retained=retained)


_OF_MEMORY = [name for name in Allocation.__slots__ if name not in ("__weakref__", "memory")]


def allocations(memory: CachingAllocator) -> list[Allocation]:
    """Those that there are now, found by the garbage collector: nobody keeps a list of them."""
    found = [thing for thing in gc.get_objects() if type(thing) is Allocation]
    return [allocation for allocation in found if allocation.memory is memory]
