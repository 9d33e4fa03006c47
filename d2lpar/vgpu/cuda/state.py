"""Whether CUDA is being emulated, and with how many devices: of the process, not of a thread."""

from __future__ import annotations

_count = 0


def device_count() -> int:
    """The number of emulated devices; 0 outside an `emulate_cuda` block."""
    return _count


def set_device_count(count: int) -> None:
    global _count
    _count = count
