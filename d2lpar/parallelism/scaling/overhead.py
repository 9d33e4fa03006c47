"""What a step of DistributedDataParallel costs besides computing and the exchange.

Each gradient is divided by the world size into its bucket, and copied back out of it; before each
forward pass buffers are made those of rank 0. See Li et al. (2020), PyTorch Distributed:
Experiences on Accelerating Data Parallel Training, and torch's reducer.cpp and comm.cpp. Exchanges
take multiprocessors from the kernels beside them, and all devices wait for the slowest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from ...machines import collective_cost as cost
from ...machines.gradient_buckets import DEFAULT_LIMITS
from ...machines.hardware import Machine
from ...machines.variability import SPREAD
from ...timeline.inputs import NotNegative, Share, check_fields, checked
from ...vgpu.sim.pricing.memory_rates import MemoryRates

_VIEWS = 3  # of a buffer: flat, its part of what is broadcast, and that in the buffer's shape
_BROADCAST_KERNELS = 2  # for each data type: concatenating, and the broadcast


@dataclass(frozen=True)
class Overhead:
    """What a kernel costs the host and the device, and how many there are; by default nothing.

    The host takes `dispatch_s` to queue a kernel and `view_s` for a view; on the device a kernel
    takes `kernel_s`, and reads and writes `bytes_per_s` in all. `buffers` are counted by data type;
    `copies_back`: gradients do not stay in their buckets. While buckets are exchanged, computing
    lacks the share `taken` of the multiprocessors. `spread` is how devices of a kind differ: see
    `machines.variability`. DDP's forward pass is a module's, whose kernels take `layer_s` more, and
    its broadcast `collective_s`.
    """

    dispatch_s: NotNegative = 0.0
    view_s: NotNegative = 0.0
    kernel_s: NotNegative = 0.0
    bytes_per_s: float = float("inf")
    buffers: tuple[int, ...] = ()
    copies_back: bool = False
    taken: Share = 0.0
    spread: NotNegative = 0.0
    layer_s: NotNegative = 0.0
    collective_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.bytes_per_s > 0:
            raise ValueError(f"bytes_per_s of an Overhead is above zero, not {self.bytes_per_s!r}")

    @classmethod
    @checked
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
        kinds = Counter(buffer.dtype for buffer in net.buffers() if broadcast_buffers)
        return cls(
            machine.host.dispatch_s,
            machine.host.view_s,
            gpu.kernel_latency_s,
            MemoryRates(gpu).bytes_per_s,
            tuple(kinds.values()),
            not gradient_as_bucket_view,
            _taken(machine),
            SPREAD,
            machine.host.layer_s,
            machine.host.collective_s,
        )

    @property
    def before_s(self) -> float:
        """Seconds until forward may begin, on a device that is idle: the host's for the buffers.

        Those of a data type are concatenated, broadcast, and copied back one by one. The broadcast
        itself is left out: on one machine it is over before the host has made the views for that.
        """
        kernel_s = self.dispatch_s + self.layer_s
        one_s = _VIEWS * self.view_s + kernel_s
        together_s = _BROADCAST_KERNELS * kernel_s + self.collective_s
        return sum(count * one_s + together_s for count in self.buffers)

    def kernels_s(self, tensors: int, nbytes: float) -> float:
        """Seconds of a device to copy so many tensors, of `nbytes` in all, each with a kernel."""
        return tensors * self.kernel_s + 2 * nbytes / self.bytes_per_s


def _taken(machine: Machine) -> float:
    """The share of multiprocessors that exchanging a bucket takes."""
    if len(machine.accelerators) == 1:
        return 0.0
    fabric = cost.fabric_among(machine, range(len(machine.accelerators)))
    return cost.taken_share(DEFAULT_LIMITS[-1], fabric, machine.accelerators[0].multiprocessors)


NO_OVERHEAD = Overhead()
