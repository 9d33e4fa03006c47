"""One kernel out of many: what `torch.compile` makes of pointwise operations and reductions in a
row.

The values are computed operation by operation; the clock hears of one kernel. It reads each tensor
from elsewhere once, and writes what is still there when it ends: an intermediate result that nobody
holds by then costs no traffic. That is on the slow side. What autograd keeps for backward counts as
written, although Inductor computes some of it once more, and so does what a variable still names.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...memory.caching_allocator import Allocation
from ...sim.pricing.kernel_cost import traffic
from ..cost.moved_bytes import size_bytes
from ..machine.runtime import Runtime, StreamKey
from ..tensors.tensor import VirtualTensor

SHOWN_NAMES = 4  # in the name of a kernel, as Inductor's tell what is in them


class _Part(NamedTuple):
    """Bytes of one allocation that are read, by the views that they are seen in."""

    most: int
    views: dict[tuple, int]

    @property
    def nbytes(self) -> int:
        return min(self.most, sum(self.views.values()))


class Read(NamedTuple):
    """A tensor that an operation reads; `part_bytes`: of it, if not the whole."""

    tensor: VirtualTensor
    part_bytes: int | None = None


class FusedKernel:
    """Operations that run over the same `size` elements on one stream, of one backward pass.

    `put(action, *args)` queues for the host thread that they belong to; `dispatch_s` is what it
    takes.
    """

    def __init__(
        self,
        rt: Runtime,
        stream: StreamKey,
        size: int,
        put: Callable[..., None],
        dispatch_s: float,
    ) -> None:
        self._rt, self.stream, self.size = rt, stream, size
        self._put, self._dispatch_s = put, dispatch_s
        self._names: list[str] = []
        self._read: list[_Part] = []
        # By the number of an allocation, which another may get once it is gone.
        self._parts: dict[int, tuple[weakref.ref[Allocation], _Part]] = {}
        self._made: dict[int, tuple[weakref.ref[Allocation], int]] = {}
        self._again_bytes = 0

    def takes(self, stream: StreamKey, size: int, reads: Iterable[Read]) -> bool:
        """Whether an operation over `size` elements fits in.

        Loops must be the same. One over fewer elements may follow a reduction of its rows; what
        follows a sum of all must wait for the whole kernel.
        """
        if stream != self.stream or size == self.size:
            return stream == self.stream
        is_part = 1 < size < self.size and self.size % size == 0
        return is_part and any(self._makes(read.tensor.vgpu_allocation) for read in reads)

    def add(
        self,
        name: str,
        reads: Iterable[Read],
        writes: Iterable[VirtualTensor],
        again_bytes: int = 0,
    ) -> None:
        """Take in an operation; `again_bytes` are those that it reads a second time."""
        self._names.append(name)
        self._again_bytes += again_bytes
        for read in reads:
            if not self._makes(read.tensor.vgpu_allocation):
                self._note_read(*read)
        for tensor in writes:
            allocation = tensor.vgpu_allocation
            self._made[id(allocation)] = (weakref.ref(allocation), size_bytes(tensor))

    def _makes(self, allocation: Allocation) -> bool:
        made = self._made.get(id(allocation))
        return made is not None and made[0]() is allocation

    def _note_read(self, tensor: VirtualTensor, part_bytes: int | None) -> None:
        allocation = tensor.vgpu_allocation
        known = self._parts.get(id(allocation))
        if known is None or known[0]() is not allocation:
            part = _Part(allocation.requested_bytes or allocation.deferred_bytes, {})
            known = self._parts[id(allocation)] = weakref.ref(allocation), part
            self._read.append(part)
        _, part = known
        view = (tensor.storage_offset(), tensor.shape, tensor.stride())
        nbytes = size_bytes(tensor) if part_bytes is None else part_bytes
        part.views[view] = max(nbytes, part.views.get(view, 0))

    @property
    def nbytes(self) -> int:
        """Bytes read and written by now."""
        read = sum(part.nbytes for part in self._read)
        written = sum(nbytes for made, nbytes in self._made.values() if made() is not None)
        return read + written + self._again_bytes

    def launch(self) -> None:
        """Put it on the clock. What is still there takes memory, unless it is computed again."""
        for made, _ in self._made.values():
            allocation = made()
            if allocation is not None and not allocation.sources:
                allocation.materialize()
        rt, nbytes = self._rt, self.nbytes
        seconds = traffic(nbytes).seconds(rt.machine.accelerators[self.stream[0]])
        name = "_".join(["fused", *self._names[:SHOWN_NAMES]])
        self._put(rt.clock.kernel, self.stream, name, seconds, nbytes, 0, self._dispatch_s)


def elements(reads: Iterable[Read], writes: Iterable[VirtualTensor]) -> int:
    """Over how many elements an operation runs: those of the largest tensor, but for one of which
    it needs some rows."""
    sizes = [tensor.numel() for tensor, part in reads if part is None]
    return max([*sizes, *(tensor.numel() for tensor in writes)], default=0)
