"""What exchanging gradients costs, by method: what each link carries, and the seconds that takes.

An exchange is a function of bytes and devices: `exchange(nbytes, devices)` gives seconds, none for
one device. In formulas n devices hold S bytes each; level i of the network has k_i members, each
of which sends b_i bytes a second, and a message takes a_i seconds besides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod

from ...machines import collective_cost as cost
from ...timeline.inputs import Count, NotNegative, Positive, checked
from .network import Network

Exchange = Callable[[float, int], float]


@checked
def library(network: Network) -> Exchange:
    """All-reduce as NCCL does it, by the algorithm and protocol that it would take.

    See `d2lpar.machines.collective_cost`. A level of racks is left out: NCCL's model knows none.
    """
    return partial(_library_s, network)


@checked
def ring(network: Network) -> Exchange:
    """All-reduce along one ring through all devices (Patarasuk and Yuan 2009).

    2 (n - 1) steps of S / n bytes, each as slow as the slowest link: 2 (n - 1) (a + S / (n b)).
    """
    return partial(_ring_s, network)


@checked
def hierarchical(network: Network) -> Exchange:
    """All-reduce level by level: reduce-scatter within, all-reduce between, all-gather within.

    The devices of a node exchange a share each with those of the same place in other nodes, all at
    once. Each level takes 2 (k_i - 1) (a_i + S / (k_i b_i)), one after the other. See Cho et al.,
    BlueConnect (2019), and the 2D-torus all-reduce of Mikami et al. (2018, arXiv:1811.05233).
    """
    return partial(_hierarchical_s, network)


@checked
def key_value_store(network: Network) -> Exchange:
    """Gradients pushed to a key-value store that sums them, parameters pulled from it.

    Every node keeps a share of all keys, besides its work. Gradients of a node are added up first,
    so that it pushes once, and what is pulled is passed on within. See Li et al. (2014), Scaling
    Distributed Machine Learning with the Parameter Server. Pulling follows pushing.
    """
    return partial(_store_s, network)


@checked
def half_precision(exchange: Exchange, memory_bytes_per_s: Positive) -> Exchange:
    """The same exchange, of fp32 gradients that devices round to fp16 or bf16, and widen again.

    Rounding reads 4 bytes and writes 2, widening the reverse: three bytes of memory traffic for
    each byte of fp32, at the memory's rate. It delays the exchange, not backward.
    """
    return partial(_halved_s, exchange, memory_bytes_per_s)


METHODS: dict[str, Callable[[Network], Exchange]] = {
    "library": library,
    "ring": ring,
    "hierarchical": hierarchical,
    "key-value store": key_value_store,
}

# --- bytes ----------------------------------------------------------------------------------------


@checked
def ring_bytes(nbytes: NotNegative, network: Network, devices: Count) -> dict[str, float]:
    """Bytes that one member of each level in use sends in a ring: 2 (n - 1) / n of S, each."""
    sizes = network.sizes(devices)
    sent = 2 * (prod(sizes) - 1) / prod(sizes) * nbytes
    return {level.name: sent for level, k in zip(network.levels, sizes, strict=True) if k > 1}


@checked
def hierarchical_bytes(nbytes: NotNegative, network: Network, devices: Count) -> dict[str, float]:
    """Bytes that one member of each level in use sends level by level: 2 (k_i - 1) / k_i of S."""
    return {
        level.name: 2 * (k - 1) / k * nbytes
        for level, k in zip(network.levels, network.sizes(devices), strict=True)
        if k > 1
    }


@checked
def store_bytes(
    nbytes: NotNegative,
    network: Network,
    devices: Count,
    *,
    servers: Count | None = None,
    aggregate: bool = True,
) -> dict[str, float]:
    """Bytes that one member of each level in use sends, and receives: pushed and pulled.

    A node pushes S, or k S without adding its k devices' up first, and a server of its own gets
    that from all m nodes, divided by the number of servers ("server"). Where each node has a
    server, 1/m stays within, and the node sends what is pulled from it as well.
    """
    sizes = network.sizes(devices)
    within, between = network.levels[0], network.levels[1:]
    pushed, nodes = (nbytes if aggregate else sizes[0] * nbytes), prod(sizes[1:])
    found = {}
    if sizes[0] > 1 and (aggregate or nodes == 1):
        found[within.name] = 2 * (sizes[0] - 1) / sizes[0] * nbytes
    for i, level in enumerate(between, start=1):
        member, members = pushed * prod(sizes[1:i]), prod(sizes[i:])
        if servers is not None:
            found[level.name] = member
        elif members > 1:
            found[level.name] = 2 * (members - 1) / members * member
    if servers is not None:
        found["server"] = pushed * nodes / servers
    return found


# --- seconds --------------------------------------------------------------------------------------


@checked
@lru_cache(maxsize=4096)  # a figure asks for the same buckets again whenever a slider moves
def _library_s(network: Network, nbytes: NotNegative, devices: Count) -> float:
    if devices == 1:
        return 0.0
    return cost.all_reduce_s(nbytes, network.fabric_of(devices))


@checked
def _ring_s(network: Network, nbytes: NotNegative, devices: Count) -> float:
    n = prod(network.sizes(devices))
    return 2 * _around_s(network, nbytes / n, devices)


def _around_s(network: Network, piece_bytes: float, devices: int) -> float:
    """Every device sends n - 1 pieces to its neighbour, one after the other."""
    sizes = network.sizes(devices)
    used = [level for level, k in zip(network.levels, sizes, strict=True) if k > 1]
    if not used:
        return 0.0
    latency_s, rate = max(at.latency_s for at in used), min(at.bytes_per_s for at in used)
    return (prod(sizes) - 1) * (latency_s + piece_bytes / rate)


@checked
def _hierarchical_s(network: Network, nbytes: NotNegative, devices: Count) -> float:
    levels = zip(network.levels, network.sizes(devices), strict=True)
    return sum(2 * (k - 1) * (at.latency_s + nbytes / k / at.bytes_per_s) for at, k in levels)


@checked
def _store_s(network: Network, nbytes: NotNegative, devices: Count) -> float:
    if devices == 1:
        return 0.0
    sent = store_bytes(nbytes, network, devices)
    within, *between = network.levels
    used = [level for level in between if level.name in sent]
    seconds = max((sent[level.name] / level.bytes_per_s for level in used), default=0.0)
    if within.name in sent:
        seconds += 2 * within.latency_s + sent[within.name] / within.bytes_per_s
    return seconds + 2 * sum(level.latency_s for level in used)


@checked
def _halved_s(
    exchange: Exchange, memory_bytes_per_s: float, nbytes: NotNegative, devices: Count
) -> float:
    if devices == 1:
        return 0.0
    return exchange(nbytes / 2, devices) + 3 * nbytes / memory_bytes_per_s
