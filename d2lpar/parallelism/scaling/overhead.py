"""What DistributedDataParallel itself queues in a step, besides the exchange.

Each gradient is divided by the world size into its bucket, and copied back out of it; before each
forward pass buffers are made those of rank 0. See Li et al. (2020), PyTorch Distributed:
Experiences on Accelerating Data Parallel Training, and torch's reducer.cpp and comm.cpp.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from ...machines.hardware import Machine
from ...vgpu.sim.constants import MEMORY_EFFICIENCY

_VIEWS = 3  # of a buffer: flat, its part of what is broadcast, and that in the buffer's shape
_BROADCAST_KERNELS = 2  # for each data type: concatenating, and the broadcast


@dataclass(frozen=True)
class Overhead:
    """What a kernel costs the host and the device, and how many there are; by default nothing.

    The host takes `dispatch_s` to queue a kernel and `view_s` for a view; on the device a kernel
    takes `kernel_s`, and reads and writes `bytes_per_s` in all. `buffers` are counted by data type;
    `copies_back`: gradients do not stay in their buckets.
    """

    dispatch_s: float = 0.0
    view_s: float = 0.0
    kernel_s: float = 0.0
    bytes_per_s: float = float("inf")
    buffers: tuple[int, ...] = ()
    copies_back: bool = False

    @classmethod
    def of(
        cls,
        machine: Machine,
        net: nn.Module,
        *,
        gradient_as_bucket_view: bool = False,
        broadcast_buffers: bool = True,
    ) -> Overhead:
        """That of `DistributedDataParallel(net)` on a machine, with its options and defaults."""
        gpu = machine.accelerators[0]
        reached = 1.0 if gpu.measured else MEMORY_EFFICIENCY
        kinds = Counter(buffer.dtype for buffer in net.buffers() if broadcast_buffers)
        return cls(
            machine.host.dispatch_s,
            machine.host.view_s,
            gpu.kernel_latency_s,
            gpu.memory_bytes_per_s * reached,
            tuple(kinds.values()),
            not gradient_as_bucket_view,
        )

    @property
    def before_s(self) -> float:
        """Seconds until forward may begin, on a device that is idle: the host's for the buffers.

        Those of a data type are concatenated, broadcast, and copied back one by one. The broadcast
        itself is left out: on one machine it is over before the host has made the views for that.
        """
        one_s = _VIEWS * self.view_s + self.dispatch_s
        return sum(count * one_s + _BROADCAST_KERNELS * self.dispatch_s for count in self.buffers)

    def kernels_s(self, tensors: int, nbytes: float) -> float:
        """Seconds of a device to copy so many tensors, of `nbytes` in all, each with a kernel."""
        return tensors * self.kernel_s + 2 * nbytes / self.bytes_per_s


NO_OVERHEAD = Overhead()
