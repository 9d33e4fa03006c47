"""Addresses for pieces of a device's memory, made up for snapshots: it has none here."""

from __future__ import annotations

from bisect import insort
from math import inf

FIRST = 0x7F00_0000_0000  # of device 0; each device has 2**40 of its own
OF_A_DEVICE = 1 << 40


class AddressSpace:
    """The addresses of one device. Each piece gets the lowest gap that is large enough."""

    def __init__(self, device: int) -> None:
        self.first = FIRST + device * OF_A_DEVICE
        self._gaps: list[tuple[int, float]] = [(self.first, inf)]

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

    @property
    def top(self) -> int:
        """The address behind all pieces."""
        return self._gaps[-1][0]
