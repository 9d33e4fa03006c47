"""What the tensors of each virtual device occupy, counted by storage."""

from __future__ import annotations

import threading

GRANULE_BYTES = 512  # CUDA's caching allocator hands out multiples of this


class OutOfMemoryError(RuntimeError):
    """A virtual device cannot hold another tensor; says asked, free and capacity."""


class DeviceMemory:
    """The memory of one device, in bytes."""

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        self.peak_bytes = 0
        # Replicas are threads; and a collection of garbage may free tensors inside `allocate`.
        self.lock = threading.RLock()

    def allocate(self, nbytes: int) -> Allocation:
        """Room for a storage of `nbytes`, given back when the allocation is dropped."""
        size = -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES
        with self.lock:
            free = self.capacity_bytes - self.allocated_bytes
            if size > free:
                raise OutOfMemoryError(
                    f"{self.name} is out of memory. Tried to allocate {_readable(size)}; "
                    f"{_readable(max(free, 0))} of {_readable(self.capacity_bytes)} are free. Use "
                    "a smaller batch or model, or split the model over more devices."
                )
            self.allocated_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return Allocation(self, size)

    def reset_peak(self) -> None:
        self.peak_bytes = self.allocated_bytes


class Allocation:
    """One storage's share of a device's memory; a tensor and its views hold the same one."""

    __slots__ = ("memory", "nbytes")

    def __init__(self, memory: DeviceMemory, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes

    def __del__(self) -> None:
        with self.memory.lock:
            self.memory.allocated_bytes -= self.nbytes


def _readable(nbytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"
