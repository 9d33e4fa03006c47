"""Seconds of NCCL's collectives on a machine: bytes, ranks, machine, algorithm, protocol.

    collectives.all_reduce(2**20, 8, "8x-a100-nvswitch", algorithm="ring")

`machine` is whatever `machines.machine` takes; `ranks` are its first GPUs, one each; `algorithm` is
"ring", "tree", "nvls" or "collnet" for an all-reduce and "ring" for what else goes round,
`protocol` "LL", "LL128" or "Simple"; None takes what is fastest. All raise ValueError for an
unknown machine, for ranks that it does not have or that do not fill its nodes evenly, for bytes
that are no finite number from zero on, and for an algorithm or protocol that it cannot do, with
what it can. The model and its sources: `nccl.model`, `nccl.tables`.
"""

from __future__ import annotations

from typing import Annotated

from ..timeline.inputs import IN_NUMBERS, Index, Kind, checked, is_amount, is_whole
from . import collective_cost as cost
from . import lookup
from .lookup import Named
from .nccl.fabric import Fabric, fabric_among, fabric_of

Bytes = Annotated[
    float,
    Kind(
        "a finite number of bytes from zero on, such as tensor.nbytes",
        is_amount,
        IN_NUMBERS,
    ),
]
Ranks = Annotated[int, Kind("a whole number of ranks, one a GPU", is_whole)]


@checked
def all_reduce(
    nbytes: Bytes,
    ranks: Ranks,
    machine: Named,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has the sum of all ranks' `nbytes`.

    "collnet" supposes a network that sums (SHARP).
    """
    fabric = _fabric(ranks, machine, network_adds=algorithm == cost.COLLNET)
    return cost.all_reduce_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


@checked
def reduce_scatter(
    nbytes: Bytes,
    ranks: Ranks,
    machine: Named,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has its share of the sum of all ranks' `nbytes`."""
    fabric = _fabric(ranks, machine)
    return cost.reduce_scatter_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


@checked
def all_gather(
    nbytes: Bytes,
    ranks: Ranks,
    machine: Named,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has all ranks' shares, `nbytes` in all."""
    fabric = _fabric(ranks, machine)
    return cost.all_gather_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


@checked
def broadcast(
    nbytes: Bytes,
    ranks: Ranks,
    machine: Named,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has the root's `nbytes`."""
    fabric = _fabric(ranks, machine)
    return cost.broadcast_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


@checked
def reduce(
    nbytes: Bytes,
    ranks: Ranks,
    machine: Named,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until the root has the sum of all ranks' `nbytes`."""
    fabric = _fabric(ranks, machine)
    return cost.reduce_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


@checked
def all_to_all(
    nbytes: Bytes,
    ranks: Ranks,
    machine: Named,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> float:
    """Seconds until each rank has a share of each other's `nbytes`; "sends" is all there is."""
    fabric = _fabric(ranks, machine)
    return cost.all_to_all_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)


@checked
def send(
    nbytes: Bytes, source: Index, target: Index, machine: Named, protocol: str | None = None
) -> float:
    """Seconds of a send of `nbytes` from one GPU to another, with its receive.

    Raises ValueError for GPUs that the machine does not have, and for a GPU that sends to itself.
    """
    found = lookup.machine(machine)
    count = len(found.accelerators)
    if source == target or not {source, target} <= {*range(count)}:
        raise ValueError(
            f"a send on {found.name} goes between two of its GPUs 0 to {count - 1}, not from "
            f"{source} to {target}"
        )
    return cost.send_s(nbytes, fabric_among(found, [source, target]), protocol=protocol)


def _fabric(ranks: int, machine: Named, *, network_adds: bool = False) -> Fabric:
    """What joins the ranks of a collective. Raises ValueError for more than there are."""
    return fabric_of(lookup.machine(machine), int(ranks), network_adds=network_adds)
