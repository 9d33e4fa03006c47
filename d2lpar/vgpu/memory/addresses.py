"""Addresses for segments of a device's memory, made up: it has none here."""

from __future__ import annotations

from bisect import insort
from math import inf

FIRST = 0x4000_0000_0000  # of device 0; each device has 2**42 of its own
OF_A_DEVICE = 1 << 42


class AddressSpace:
    """The addresses of one device. Each piece gets the lowest gap that is large enough."""

    def __init__(self, device: int) -> None:
        self._gaps: list[tuple[int, float]] = [(FIRST + device * OF_A_DEVICE, inf)]

    def place(self, size: int) -> int:
        """The address of a new piece."""
        for i, (start, end) in enumerate(self._gaps):
            if end - start >= size:
                self._gaps[i : i + 1] = [(start + size, end)] if end - start > size else []
                return start
        raise AssertionError("the last gap has no end")

    def release(self, address: int, size: int) -> None:
        """Let other pieces have this place."""
        insort(self._gaps, (address, address + size))
        joined: list[tuple[int, float]] = []
        for start, end in self._gaps:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        self._gaps = joined
