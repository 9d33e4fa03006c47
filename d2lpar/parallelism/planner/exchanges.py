"""Seconds of the exchanges that a step is made of, by what a library makes of the links."""

from __future__ import annotations

from ...machines import collective_cost as cost
from ...machines.hardware import Host

# Multiprocessors that NCCL's kernels take while they run, one a channel: "24 coll channels" is
# what it logs on nodes with NVLink, 2 over PCIe.
CHANNELS = {"nvlink": 24, "pcie": 2}


def half_ring_s(nbytes: float, fabric: cost.Fabric) -> float:
    """Seconds of a reduce-scatter or an all-gather: a ring's all-reduce is one after the other."""
    return cost.all_reduce_s(nbytes, fabric, algorithm=cost.RING) / 2


def all_to_all_s(nbytes: float, fabric: cost.Fabric) -> float:
    """Seconds until each rank has sent `nbytes` in all, an even part to every rank.

    What stays on the node goes over its links, the rest through its ports, both at once. Messages
    start one after the other, as a ring's do.
    """
    part = nbytes / fabric.ranks
    within_s = part * (fabric.local - 1) / fabric.bus_bytes_per_s
    between_s = part * (fabric.ranks - fabric.local) / (fabric.network_bytes_per_s / fabric.local)
    starting_s = cost.latency_s(cost.RING, cost.SIMPLE, nbytes, fabric) / 2
    return starting_s + max(within_s, between_s)


def list_exchange_s(nbytes: float, fabric: cost.Fabric, host: Host, kernel_s: float) -> float:
    """Seconds of an all-gather into a list of tensors, or a reduce-scatter from one.

    So DeepSpeed of 2021 gathered each parameter (partition_parameters.py): it cuts the result into
    a view for each rank, and torch's ProcessGroupNCCL copies what came to each of them, a kernel a
    rank. The host queues them beside the exchange; they run after it, and last `kernel_s` each.
    """
    queueing_s = fabric.ranks * (host.dispatch_s + host.view_s)
    exchange_s = max(half_ring_s(nbytes, fabric), queueing_s)
    return fabric.ranks * (host.view_s + kernel_s) + exchange_s


def exposed_s(exchange_s: float, computing_s: float, pieces: int, *, taken: float = 0.0) -> float:
    """What computing beside an exchange does not hide of it.

    At least the one of so many pieces that is outside it, and what the computing loses to kernels
    that have taken this share of the GPU.
    """
    if not computing_s:
        return exchange_s
    return max(exchange_s - computing_s, exchange_s / pieces + taken * exchange_s)


def taken_share(fabric: cost.Fabric, multiprocessors: int | None) -> float:
    """The share of a GPU's multiprocessors that kernels of an exchange take; 0 if unknown."""
    if multiprocessors is None:
        return 0.0
    return min(CHANNELS[fabric.medium] / multiprocessors, 0.5)
