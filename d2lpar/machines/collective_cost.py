"""How long NCCL's collectives take over a `Fabric`: the least of its algorithms and protocols.

`lesson.collectives` writes collectives by hand, copy by copy; this is what a library makes of the
same links, pipelined inside kernels of its own. The model is told in `nccl.model`, its figures
stand in `nccl.tables`. An all-reduce by ring is a reduce-scatter and an all-gather (Patarasuk and
Yuan 2009), each half of its steps and bytes. Broadcast and reduce send all along a pipelined chain.
All-to-all, gather and scatter are sends side by side: what has most to carry decides.

`collectives` asks the same of a machine and a number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from .hardware import MICRO
from .nccl.fabric import (
    Fabric,
    fabric_among,
    fabric_of,
    is_tuned,
    network_bytes_per_s,
    network_latency_s,
    node_network_bytes_per_s,
)
from .nccl.model import (
    bandwidth,
    believed_s,
    blocks,
    fill_s,
    latency_s,
    offered,
    post_us,
    ring_bus_bytes_per_s,
    ring_latency_s,
    rounds_latency_s,
    takes_s,
)
from .nccl.tables import (
    ALGORITHMS,
    COLLNET,
    LAUNCH_S,
    LL,
    LL128,
    NVLS,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
)

__all__ = [
    "COLLNET", "LAUNCH_S", "LL", "LL128", "NVLS", "RING", "SENDS", "SIMPLE", "TREE", "Fabric",
    "all_gather_s", "all_reduce_s", "all_to_all_s", "bandwidth", "blocks_of", "broadcast_s",
    "collective_s", "fabric_among", "fabric_of", "gather_s", "is_tuned",
    "latency_s", "launched_by_one_thread_s", "network_bytes_per_s", "network_latency_s",
    "node_network_bytes_per_s", "reduce_s", "reduce_scatter_s", "send_s", "taken_share",
]  # fmt: skip

SENDS = "sends"  # the algorithm of all-to-all, gather and scatter
_SEND_PROTOCOLS = (LL, SIMPLE)  # NCCL's point-to-point kernels know no LL128

# --- all-reduce -----------------------------------------------------------------------------------


def all_reduce_s(
    nbytes: float, fabric: Fabric, *, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """Seconds to sum `nbytes` over all ranks, by the algorithm and protocol that NCCL chooses.

    Raises ValueError, with what there is, if the algorithm or protocol that is asked for is not.
    """
    return _all_reduce(nbytes, fabric.to_and_fro, algorithm, protocol)[1]


def blocks_of(nbytes: float, fabric: Fabric, name: str = "all_reduce") -> int:
    """How many blocks a collective's kernel has on each GPU: one a channel, each of which takes a
    multiprocessor from what runs beside it. Fewer than the channels where there is little: NCCL
    gives each at least 512 threads' words of 16 bytes."""
    algorithm = RING
    if name == "all_reduce":
        algorithm = _all_reduce(nbytes, fabric.to_and_fro, None, None)[0][0]
    return max(1, min(blocks(algorithm, fabric), int(nbytes / (512 * 16))))


def taken_share(
    nbytes: float, fabric: Fabric, multiprocessors: int | None, name: str = "all_reduce"
) -> float:
    """The share of a GPU's multiprocessors that `blocks_of` take from what runs beside them.

    None for an unknown number of multiprocessors, half of them at most.
    """
    if multiprocessors is None:
        return 0.0
    return min(blocks_of(nbytes, fabric, name) / multiprocessors, 0.5)


@lru_cache(maxsize=65536)
def _all_reduce(
    nbytes: float, fabric: Fabric, algorithm: str | None, protocol: str | None
) -> tuple[tuple[str, str], float]:
    _check_known(algorithm, protocol, ALGORITHMS)
    there = [(a, p) for a, p in offered(fabric) if algorithm in (None, a) and protocol in (None, p)]
    if not there:
        raise ValueError(_why_not(algorithm, protocol, fabric))
    chosen = min(there, key=lambda way: believed_s(way[0], way[1], nbytes, fabric))
    return chosen, takes_s(chosen[0], chosen[1], nbytes, fabric)


def _why_not(algorithm: str | None, protocol: str | None, fabric: Fabric) -> str:
    """What an all-reduce would take, and what there is instead."""
    needs = {
        NVLS: "NVSwitches that sum, of Hopper or later, and protocol Simple",
        COLLNET: "several nodes, a network that sums (fabric_of(…, network_adds=True)), and Simple",
    }
    need = needs.get(algorithm or "", "NVLink throughout" if protocol == LL128 else "another one")
    there = ", ".join(f"{a} with {p}" for a, p in offered(fabric))
    return (
        f"no all-reduce by {algorithm or 'any algorithm'}, {protocol or 'any protocol'} over "
        f"{fabric.medium} on {fabric.nodes} nodes of {fabric.generation} GPUs: it takes {need}; "
        f"there is {there}"
    )


def _check_known(algorithm: str | None, protocol: str | None, algorithms: Iterable[str]) -> None:
    for value, known in ((algorithm, algorithms), (protocol, PROTOCOLS)):
        if value is not None and value not in known:
            raise ValueError(f"NCCL does not do this by {value!r}: take {', '.join(known)}")


# --- what rings do --------------------------------------------------------------------------------


def reduce_scatter_s(
    nbytes: float, fabric: Fabric, *, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """Seconds until each rank has a share of the sum; `nbytes` is what each rank brings, whole."""
    return _around_s(nbytes, _others(nbytes, fabric), fabric.to_and_fro, algorithm, protocol)


def all_gather_s(
    nbytes: float, fabric: Fabric, *, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """Seconds until each rank has what all have; `nbytes` is what each rank gets, whole."""
    return _around_s(nbytes, _others(nbytes, fabric), fabric.to_and_fro, algorithm, protocol)


def broadcast_s(
    nbytes: float, fabric: Fabric, *, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """Seconds until each rank has the root's `nbytes`, which pass from rank to rank."""
    return _around_s(nbytes, nbytes, fabric, algorithm, protocol)


def reduce_s(
    nbytes: float, fabric: Fabric, *, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """Seconds until the root has the sum of all `nbytes`, added up from rank to rank."""
    return _around_s(nbytes, nbytes, fabric, algorithm, protocol)


def _others(nbytes: float, fabric: Fabric) -> float:
    return nbytes * (fabric.ranks - 1) / fabric.ranks


@lru_cache(maxsize=65536)
def _around_s(
    nbytes: float, sent_bytes: float, fabric: Fabric, algorithm: str | None, protocol: str | None
) -> float:
    """So many bytes over each link of a ring, in as many steps as there are other ranks."""
    _check_known(algorithm, protocol, (RING,))
    there = [p for a, p in offered(fabric) if a == RING and protocol in (None, p)]
    if not there:
        raise ValueError(_why_not(RING, protocol, fabric))
    return min(_once_around_s(nbytes, sent_bytes, fabric, p) for p in there)


def _once_around_s(nbytes: float, sent_bytes: float, fabric: Fabric, protocol: str) -> float:
    if sent_bytes < nbytes:
        latency = rounds_latency_s(protocol, nbytes, 1, fabric)
    else:  # a chain
        latency = ring_latency_s(protocol, fabric.ranks - 1, fabric.nodes - 1, fabric)
    filling = fill_s(RING, protocol, nbytes, fabric) / 2  # an all-reduce goes round twice
    return latency + sent_bytes / ring_bus_bytes_per_s(protocol, nbytes, fabric) + filling


# --- sends ----------------------------------------------------------------------------------------


def send_s(nbytes: float, fabric: Fabric, *, protocol: str | None = None) -> float:
    """Seconds of a send and its receive between two ranks; of more, to each its neighbour's."""
    _check_known(None, protocol, ())
    return min(
        ring_latency_s(p, 1, min(1, fabric.nodes - 1), fabric)
        + nbytes / ring_bus_bytes_per_s(p, nbytes, fabric)
        for p in _send_protocols(protocol)
    )


def all_to_all_s(
    nbytes: float, fabric: Fabric, *, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """Seconds until each rank has a share of what each other has; each brings `nbytes`, whole."""
    return _side_by_side_s(nbytes, fabric.local, fabric.to_and_fro, algorithm, protocol)


def gather_s(nbytes: float, fabric: Fabric) -> float:
    """Seconds until the root has what all have, `nbytes` in all; a scatter takes as long."""
    return _side_by_side_s(nbytes, 1, fabric, None, None)


@lru_cache(maxsize=65536)
def _side_by_side_s(
    nbytes: float, senders: int, fabric: Fabric, algorithm: str | None, protocol: str | None
) -> float:
    """Every rank's share crosses its own link, or the port that `senders` of its node share."""
    _check_known(algorithm, protocol, (SENDS,))
    share = nbytes / fabric.ranks
    others = fabric.ranks - fabric.local
    return min(
        _posted_s(p, others, fabric)
        + max(
            (fabric.local - 1) * share / _rate(p, fabric.bus_bytes_per_s),
            senders * others * share / _rate(p, fabric.network_bytes_per_s),
        )
        for p in _send_protocols(protocol)
    )


def _posted_s(protocol: str, others: int, fabric: Fabric) -> float:
    """A step within the node, one between nodes, and a post for each rank on another."""
    crossing = min(1, others)
    posts = others * post_us(protocol, fabric) * MICRO
    return ring_latency_s(protocol, 1 + crossing, crossing, fabric) + posts


def _rate(protocol: str, bytes_per_s: float) -> float:
    return bytes_per_s / 2 if protocol == LL else bytes_per_s


def _send_protocols(protocol: str | None) -> Iterable[str]:
    if protocol == LL128:
        raise ValueError("NCCL does not send by LL128: take LL or Simple")
    return _SEND_PROTOCOLS if protocol is None else (protocol,)


# --- by name --------------------------------------------------------------------------------------

_BY_NAME: dict[str, Callable[[float, Fabric], float]] = {
    "all_reduce": all_reduce_s,
    "barrier": all_reduce_s,
    "reduce_scatter": reduce_scatter_s,
    "all_gather": all_gather_s,
    "broadcast": broadcast_s,
    "reduce": reduce_s,
    "all_to_all": all_to_all_s,
    "gather": gather_s,
    "scatter": gather_s,
    "send": send_s,
}


def collective_s(name: str, nbytes: float, fabric: Fabric) -> float:
    """Seconds of a collective by its name ("all_reduce"); `nbytes` is the whole of what it sums,
    gathers or scatters. A barrier is an all-reduce of one number, as in c10d.

    Raises ValueError for a name that is none of NCCL's.
    """
    if name not in _BY_NAME:
        raise ValueError(f"no collective is called {name!r}: take {', '.join(_BY_NAME)}")
    return _BY_NAME[name](nbytes, fabric)


def launched_by_one_thread_s(seconds: float, ranks: int) -> float:
    """Seconds of one of many equal collectives if one host thread launches all ranks' parts.

    Whichever is longer: the collective, or its launches, one after the other, for the next one.
    """
    return max(seconds, ranks * LAUNCH_S)
