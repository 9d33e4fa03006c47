"""Exchanges of GPUs' tensors through the hosts' memory, as gloo has them.

gloo works on the host. What a rank gives is copied there, into page-locked memory, and what it
takes is copied back, both on a stream beside the program's; in between the hosts exchange, in no
time. So ranks may share a GPU, and share its link then. Sends it has of the host's tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...sim.clock import Clock, HostThread
from ...sim.event_queue import QueuedWork
from ..calls.collective_calls import CollectiveCall


class HostExchange:
    """One rank's part in one: `arrived` is the copy of what it takes to its device, when there is
    one on the clock."""

    def __init__(self, call: CollectiveCall) -> None:
        self._given, self._taken = _nbytes(call.reads), _nbytes(call.writes)
        self.arrived: QueuedWork | None = None

    def queue(
        self,
        host_thread: HostThread,
        clock: Clock,
        stream: tuple[int, int],
        meet: Callable[..., None],
        name: str,
        more: dict,
    ) -> None:
        """Put the copies on the clock, and between them the exchange, by `meet`."""
        if self._given:
            clock.copy(host_thread, stream, None, self._given, name)
        meet(host_thread, clock, stream, name, more)
        if self._taken:
            self.arrived = clock.copy(host_thread, None, stream, self._taken, name)


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def refused(name: str, tensor: torch.Tensor) -> RuntimeError:
    """What to raise for a send of a device's tensor: gloo takes its address for one of the host."""
    return RuntimeError(
        f"gloo cannot {name} tensors on {tensor.device}, only those of the host: {name} "
        "tensor.cpu(), or make the group with init_process_group('nccl') and a GPU for each rank"
    )
