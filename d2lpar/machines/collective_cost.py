"""How long a library's all-reduce takes: NCCL's own model of its algorithms and protocols.

`collectives` writes collectives by hand, copy by copy; this is what a library makes of the same
links, pipelined inside kernels of its own. NCCL estimates `latency + bytes / bandwidth` for each
algorithm and protocol and takes the least; so does this. Latencies, caps and corrections are those
of NCCL 2.19 (src/graph/tuning.cc at https://github.com/NVIDIA/nccl, commit b6475625), the
efficiency of NVLS that of later releases ("nvlsEfficiency"), the rates of links those of its
topo.h, which the catalogue has. Bandwidths follow from the bytes that an algorithm sends. That
NCCL's kernels slow others down is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from .hardware import GIGA, MICRO, Machine

RING, TREE, NVLS, COLLNET = "ring", "tree", "nvls", "collnet"
LL, LL128, SIMPLE = "LL", "LL128", "Simple"
PROTOCOLS = (LL, LL128, SIMPLE)

# Microseconds for LL, LL128 and Simple (tuning.cc): once, and for each step over a medium.
_BASE_US = {RING: (6.6, 14.0, 8.4), TREE: (6.8, 14.0, 0)}
_STEP_US = {
    ("nvlink", RING): (0.6, 1.9, 3.4),
    ("nvlink", TREE): (0.6, 1.25, 28),
    ("nvlink", NVLS): (inf, inf, 23),
    ("nvlink", COLLNET): (inf, inf, 3.7),
    ("pcie", RING): (1.0, 2.5, 5.7),
    ("pcie", TREE): (1.0, 1.9, 28),
    ("pcie", COLLNET): (inf, inf, 3.7),
    ("network", RING): (2.7, 4.0, 14.0),
    ("network", TREE): (5.0, 8.5, 28),
    ("network", NVLS): (inf, inf, 14),
    ("network", COLLNET): (inf, inf, 31),
}
_COLLNET_ARITY_US = 0.4
# GB/s that LL reaches at most, on one node, two, and more: by GPU on one, by processor on more.
_LL_GPU = {"volta": 39.0, "ampere": 87.7, "hopper": 87.7}
_LL_INTEL, _LL_AMD = (39.0, 20.4), (22.5, 19.0)
_AMPERE_BUS = 235 * GIGA  # NCCL 2.8's cap (commit 01afd20a)
_NVLS_SHARE = 0.85
_COLLNET_SHARE = 0.85
_PLATEAU = {"volta": 1.9, "ampere": 1.4, "hopper": 1.4}
# Trees between 64 B and 256 MB, a factor for each power of two.
_TREE_FACTORS = {
    LL: "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1",
    LL128: "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1",
    SIMPLE: ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9",
}
_TREE = {protocol: [float(f) for f in row.split()] for protocol, row in _TREE_FACTORS.items()}


@dataclass(frozen=True)
class Fabric:
    """What an all-reduce runs over: ranks, evenly on so many nodes, and the rates between them.

    `bus_bytes_per_s` is what one GPU can send within its node while it receives as much;
    `network_bytes_per_s` what a node can send to others, over all its ports. `medium` is "nvlink"
    or "pcie", `generation` "volta" (and before), "ampere" or "hopper". `switch_adds`: NVSwitches
    sum what passes through them (NVLS); `network_adds`: the network's do (SHARP).
    """

    ranks: int
    nodes: int
    bus_bytes_per_s: float
    network_bytes_per_s: float = inf
    medium: str = "nvlink"
    generation: str = "volta"
    amd: bool = False
    switch_adds: bool = False
    network_adds: bool = False

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.nodes < 1 or self.ranks % self.nodes:
            raise ValueError(
                f"an all-reduce takes two ranks or more, evenly on its nodes, not {self.ranks} "
                f"on {self.nodes}"
            )

    @property
    def local(self) -> int:
        """Ranks on a node."""
        return self.ranks // self.nodes


def fabric_of(machine: Machine, ranks: int | None = None, *, network_adds: bool = False) -> Fabric:
    """The first `ranks` GPUs of a machine (default: all) as NCCL sees them.

    Without peers GPUs exchange through the host's memory, at the rate of its link.
    """
    ranks = len(machine.accelerators) if ranks is None else ranks
    nodes = machine.node_of(ranks - 1) + 1
    intra = machine.peer or machine.host_link
    nvlink = intra.name.startswith("NVLink")
    generation = _generation(machine.accelerators[0].name)
    bus = intra.payload_bytes_per_s
    return Fabric(
        ranks,
        nodes,
        min(bus, _AMPERE_BUS) if generation == "ampere" else bus,
        node_network_bytes_per_s(machine) if nodes > 1 else inf,
        "nvlink" if nvlink else "pcie",
        generation,
        amd="EPYC" in machine.host.name,
        switch_adds=generation == "hopper" and "NVSwitch" in intra.name,
        network_adds=network_adds,
    )


def node_network_bytes_per_s(machine: Machine) -> float:
    """Bytes a second that one node of a cluster can send, over all its ports, as NCCL reckons.

    Raises ValueError for a machine without a network.
    """
    if machine.network is None:
        raise ValueError(f"{machine.name} has no network: name a cluster")
    ports = machine.network_port_of(len(machine.accelerators) - 1) + 1
    return machine.network.payload_bytes_per_s * ports / machine.nodes


def all_reduce_s(
    nbytes: float, fabric: Fabric, *, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """Seconds to sum `nbytes` over all ranks, by the algorithm and protocol that are fastest.

    Raises ValueError if the algorithm or protocol that is asked for is not there.
    """
    found = [
        seconds
        for (a, p), seconds in choices(nbytes, fabric).items()
        if algorithm in (None, a) and protocol in (None, p)
    ]
    if not found:
        raise ValueError(
            f"no all-reduce by {algorithm or 'any algorithm'}, {protocol or 'any protocol'} "
            f"on {fabric}"
        )
    return min(found)


def bus_bandwidth(nbytes: float, ranks: int, seconds: float) -> float:
    """nccl-tests' measure, bytes a second: as if a ring had sent it, whatever did."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks


def choices(nbytes: float, fabric: Fabric) -> dict[tuple[str, str], float]:
    """Seconds by algorithm and protocol, for those that the fabric offers."""
    return {
        (algorithm, protocol): latency_s(algorithm, protocol, nbytes, fabric)
        + nbytes / bandwidth(algorithm, protocol, nbytes, fabric)
        for algorithm, protocol in _offered(fabric)
    }


def _offered(fabric: Fabric) -> Iterator[tuple[str, str]]:
    for algorithm in (RING, TREE):
        for protocol in PROTOCOLS:
            if protocol != LL128 or fabric.medium == "nvlink":
                yield algorithm, protocol
    if fabric.switch_adds:
        yield NVLS, SIMPLE
    if fabric.network_adds and fabric.nodes > 1:
        yield COLLNET, SIMPLE


# --- bandwidth: bytes summed a second -------------------------------------------------------------


def bandwidth(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Bytes a second of an all-reduce, without latency; `nbytes` matters to trees only."""
    if algorithm == RING:
        return _ring(protocol, fabric)
    if algorithm == TREE:
        return _tree(protocol, fabric) * _tree_factor(protocol, nbytes)
    if algorithm == NVLS:
        # A GPU reads a share of all sums, which takes all that all have, and writes it to all.
        sent = (fabric.local + 1) / fabric.local
        return min(fabric.bus_bytes_per_s * _NVLS_SHARE / sent, _between_in_a_tree(fabric))
    # The network adds: a node sends everything once, after a reduce-scatter within.
    within = fabric.bus_bytes_per_s * _by_ring(fabric.local)
    return min(within, fabric.network_bytes_per_s) * _COLLNET_SHARE


def _ring(protocol: str, fabric: Fabric) -> float:
    bus = min(fabric.bus_bytes_per_s, fabric.network_bytes_per_s)
    if protocol == LL:
        bus = min(bus / 4, _most_of_ll(fabric))
    elif protocol == LL128:
        bus *= 0.92
    return bus * _by_ring(fabric.ranks)


def _by_ring(ranks: int) -> float:
    """Each rank sends 2 (n - 1) pieces of 1/n: Patarasuk and Yuan (2009)."""
    return ranks / (2 * (ranks - 1)) if ranks > 1 else inf


def _tree(protocol: str, fabric: Fabric) -> float:
    """Everything goes up and comes down once; within a node along a chain."""
    rate = min(fabric.bus_bytes_per_s * 0.92 / 2, _between_in_a_tree(fabric))
    if protocol == LL:
        return min(rate / 3.8, _most_of_ll(fabric) / 2)
    if protocol == LL128:
        return rate * (7 / 9 if fabric.nodes == 1 else 120 / 128)
    return rate


def _between_in_a_tree(fabric: Fabric) -> float:
    """Of two nodes each sends everything once, half up one tree and half down the other. Of more
    each has two children in one of the two trees: it sends everything twice."""
    return fabric.network_bytes_per_s / (1 if fabric.nodes <= 2 else 2)


def _tree_factor(protocol: str, nbytes: float) -> float:
    power = max(int(nbytes) >> 6, 1).bit_length() - 1
    factors = _TREE[protocol]
    return factors[power] if power < len(factors) else 1.0


def _most_of_ll(fabric: Fabric) -> float:
    if fabric.nodes == 1:
        return _LL_GPU[fabric.generation] * GIGA
    return (_LL_AMD if fabric.amd else _LL_INTEL)[min(fabric.nodes, 3) - 2] * GIGA


# --- latency --------------------------------------------------------------------------------------


def latency_s(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Seconds that an all-reduce takes however little there is to sum."""
    at = PROTOCOLS.index(protocol)
    within = _STEP_US[fabric.medium, algorithm][at]
    between = _STEP_US["network", algorithm][at] if fabric.nodes > 1 else 0.0
    if algorithm == RING:
        return _ring_latency_us(at, within, between, nbytes, fabric) * MICRO
    levels = fabric.nodes.bit_length() - 1
    if algorithm == TREE:
        steps = (fabric.local - 1) * within + levels * between
        return (_BASE_US[TREE][at] + 2 * steps) * MICRO
    if algorithm == NVLS:
        return (within + 2 * levels * between) * MICRO
    inside = min(1, fabric.local - 1) * within + (fabric.local - 1) * _COLLNET_ARITY_US
    return (2 * inside + between) * MICRO


def _ring_latency_us(
    at: int, within: float, between: float, nbytes: float, fabric: Fabric
) -> float:
    steps = 2 * (fabric.ranks - 1)
    if fabric.nodes == 1:
        return _BASE_US[RING][at] + steps * within
    posting = (2.0 if fabric.amd else 1.0) * (3 if PROTOCOLS[at] == SIMPLE else 1)
    crossing = 2 * fabric.nodes
    latency = _BASE_US[RING][at] + (steps - crossing) * max(within, posting) + crossing * between
    if PROTOCOLS[at] == SIMPLE and nbytes / fabric.ranks >= 64:
        latency *= _PLATEAU[fabric.generation]
    return latency


def _generation(accelerator: str) -> str:
    if accelerator.startswith(("H100", "H200")):
        return "hopper"
    return "ampere" if accelerator.startswith("A100") else "volta"
