"""Seconds of NCCL's collectives on a machine: bytes, ranks, machine, algorithm, protocol.

    collectives.all_reduce(2**20, 8, machines.machine("8x-a100-nvswitch"), algorithm="ring")

`ranks` are the machine's first GPUs, one each; `algorithm` is "ring", "tree", "nvls" or "collnet"
for an all-reduce and "ring" for what else goes round, `protocol` "LL", "LL128" or "Simple"; None
takes what is fastest. All raise ValueError for ranks that the machine does not have or that do not
fill its nodes evenly, and for an algorithm or protocol that it cannot do, with what it can. The
model and its sources: `nccl.model`, `nccl.tables`.
"""

from __future__ import annotations

from . import collective_cost as cost
from .hardware import Machine
from .nccl.fabric import fabric_among, fabric_of


def all_reduce(
    nbytes: float,
    ranks: int,
    machine: Machine,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has the sum of all ranks' `nbytes`.

    "collnet" supposes a network that sums (SHARP).
    """
    fabric = fabric_of(machine, ranks, network_adds=algorithm == cost.COLLNET)
    return cost.all_reduce_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


def reduce_scatter(
    nbytes: float,
    ranks: int,
    machine: Machine,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has its share of the sum of all ranks' `nbytes`."""
    fabric = fabric_of(machine, ranks)
    return cost.reduce_scatter_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


def all_gather(
    nbytes: float,
    ranks: int,
    machine: Machine,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has all ranks' shares, `nbytes` in all."""
    fabric = fabric_of(machine, ranks)
    return cost.all_gather_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


def broadcast(
    nbytes: float,
    ranks: int,
    machine: Machine,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has the root's `nbytes`."""
    fabric = fabric_of(machine, ranks)
    return cost.broadcast_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


def reduce(
    nbytes: float,
    ranks: int,
    machine: Machine,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until the root has the sum of all ranks' `nbytes`."""
    fabric = fabric_of(machine, ranks)
    return cost.reduce_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


def all_to_all(
    nbytes: float,
    ranks: int,
    machine: Machine,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has a share of each other's `nbytes`; "sends" is all there is."""
    fabric = fabric_of(machine, ranks)
    return cost.all_to_all_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


def send(
    nbytes: float, source: int, target: int, machine: Machine, protocol: str | None = None
) -> float:
    """Seconds of a send of `nbytes` from one GPU to another, with its receive.

    Raises ValueError for GPUs that the machine does not have, and for a GPU that sends to itself.
    """
    count = len(machine.accelerators)
    if source == target or not {source, target} <= {*range(count)}:
        raise ValueError(
            f"a send on {machine.name} goes between two of its GPUs 0 to {count - 1}, not from "
            f"{source} to {target}"
        )
    return cost.send_s(nbytes, fabric_among(machine, [source, target]), protocol=protocol)
