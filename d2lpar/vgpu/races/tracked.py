"""What the detectors ask of a tensor and of its memory, which are made above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from .call_sites import Mark
from .vector_clock import Access

Use = tuple[float, float, Access]  # first byte, byte after the last, and the access


class History:
    """The last uses of each part of one piece of memory."""

    KEPT_USES = 64

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: list[Use] = []
        self.writes: list[Use] = []

    def note_read(self, use: Use) -> None:
        """Keep a read; it stands for earlier ones of its stream that lie within it."""
        stream = use[2][0]
        self.reads = [u for u in self.reads if u[2][0] != stream or not _within(u, use)]
        self.reads = [*self.reads[-self.KEPT_USES :], use]

    def note_write(self, use: Use) -> None:
        """Keep a write; whatever lies within it is over."""
        self.reads = [u for u in self.reads if not _within(u, use)]
        self.writes = [u for u in self.writes if not _within(u, use)]
        self.writes = [*self.writes[-self.KEPT_USES :], use]


def _within(inner: Use, outer: Use) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


class TrackedMemory(Protocol):
    """One storage's memory: its size, the number of its stream, and how it was used."""

    nbytes: int
    requested_bytes: int
    stream: int
    made: Mark | None
    written: Access | None
    reads: Access | None
    history: History | None
    parts: bool
    recorded: set[int] | None


class TrackedTensor(Protocol):
    """A tensor of device number `vgpu_index` on a piece of memory, `vgpu_allocation`."""

    @property
    def vgpu_allocation(self) -> TrackedMemory:
        """The memory of its storage."""

    @property
    def vgpu_index(self) -> int:
        """The number of its device."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its elements."""

    @property
    def shape(self) -> Sequence[int]:
        """Elements in each dimension."""

    def numel(self) -> int:
        """Elements in all."""

    def stride(self) -> Sequence[int]:
        """Elements of the storage from one to the next, in each dimension."""

    def storage_offset(self) -> int | torch.SymInt:
        """Elements of the storage before the first."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def is_contiguous(self) -> bool:
        """Whether elements lie one after the other, the last dimension innermost."""
