"""Seconds of the exchanges that a step is made of, by what a library makes of the links."""

from __future__ import annotations

from ....machines import collective_cost as cost
from ....machines.hardware import Host


def list_exchange_s(nbytes: float, fabric: cost.Fabric, host: Host, kernel_s: float) -> float:
    """Seconds of an all-gather into a list of tensors, or a reduce-scatter from one.

    So DeepSpeed of 2021 gathered each parameter (partition_parameters.py): it cuts the result into
    a view for each rank, and torch's ProcessGroupNCCL copies what came to each of them, a kernel a
    rank. The host queues them beside the exchange; they run after it, and last `kernel_s` each.
    """
    queueing_s = fabric.ranks * (host.dispatch_s + host.view_s)
    exchange_s = max(cost.all_gather_s(nbytes, fabric), queueing_s)
    return fabric.ranks * (host.view_s + kernel_s) + exchange_s


def exposed_s(exchange_s: float, computing_s: float, pieces: int, *, taken: float = 0.0) -> float:
    """What computing beside an exchange does not hide of it.

    At least the one of so many pieces that is outside it, and what the computing loses to kernels
    that have taken this share of the GPU.
    """
    if not computing_s:
        return exchange_s
    return max(exchange_s - computing_s, exchange_s / pieces + taken * exchange_s)
