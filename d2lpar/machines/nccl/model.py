"""NCCL's model of its algorithms: latency and bandwidth of each, and how long a pipeline fills.

NCCL estimates `latency + bytes / bandwidth` for each algorithm and protocol and takes the least
(src/graph/tuning.cc). So does this, with one more term where links are fast. What a channel sends
goes in chunks through buffers; a block first copies or adds a chunk, and then hands it on. In a
long stream the two overlap. The first chunk of every channel and rank has nothing to overlap with:
the first `channels x ranks x chunk` count twice. NCCL corrects its trees for this by a table; for
rings and for sums in switches it has nothing, and comes out too fast between 1 and 256 MiB. Over
PCIe the links are so slow that copying hides behind them: measured curves show no such ramp.

Steps of a ring take longer in Simple once there is something to hand on. NCCL calls it a plateau,
and knows it of all-reduces over several nodes; newer versions of Blackwell's all-gathers and
reduce-scatters within one, too. Measured curves have it wherever links are NVLink.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from ..hardware import GIGA, MICRO
from .fabric import Fabric
from .tables import (
    BASE_US,
    BEGIN_US,
    CHUNK_BYTES,
    COLLNET,
    COLLNET_ARITY_US,
    COLLNET_SHARE,
    LL,
    LL128,
    LL_AMD,
    LL_CHANNEL,
    LL_GPU,
    LL_INTEL,
    LL_SHARE,
    LL_SHARE_OLD_NVLINK,
    LL_THREAD_BYTES,
    LL_THREADS,
    NVLINK,
    NVLS,
    NVLS_CHANNEL,
    NVLS_TREE_SHARE,
    PLATEAU,
    POST_US,
    POST_US_AMD,
    PROTOCOLS,
    RING,
    RING_CHUNK_BYTES,
    SIMPLE,
    SIMPLE_POSTS,
    STEP_US,
    TREE,
    TREE_FACTORS,
)


def offered(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """The algorithms and protocols by which a fabric can all-reduce."""
    for algorithm in (RING, TREE):
        for protocol in PROTOCOLS:
            if protocol != LL128 or fabric.medium == NVLINK:
                yield algorithm, protocol
    if fabric.switch_adds:
        yield NVLS, SIMPLE
    if fabric.network_adds and fabric.nodes > 1:
        yield COLLNET, SIMPLE


def blocks(algorithm: str, fabric: Fabric) -> int:
    """How many blocks its kernel has on each GPU: one a channel, on a multiprocessor each."""
    return fabric.nvls_channels if algorithm == NVLS else fabric.channels


def believed_s(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """How long NCCL itself thinks that an all-reduce takes: what it chooses by.

    Of two nodes it does not know that a tree sends over the network half of what a ring does.
    Amazon's plugin brings a tuner that does.
    """
    if algorithm == TREE and fabric.nodes == 2 and not fabric.tuned:
        fabric = replace(fabric, network_bytes_per_s=fabric.network_bytes_per_s * 0.92 / 2)
    return takes_s(algorithm, protocol, nbytes, fabric)


def takes_s(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Seconds of an all-reduce by this algorithm and protocol."""
    latency = latency_s(algorithm, protocol, nbytes, fabric)
    carrying_s = nbytes / bandwidth(algorithm, protocol, nbytes, fabric)
    filling_s = fill_s(algorithm, protocol, nbytes, fabric)
    return latency + carrying_s + filling_s + hops_s(algorithm, protocol, nbytes, fabric)


# --- bandwidth: bytes summed a second -------------------------------------------------------------


def bandwidth(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Bytes a second of an all-reduce, without latency; `nbytes` matters to trees and to LL."""
    if algorithm == RING:
        return ring_bus_bytes_per_s(protocol, nbytes, fabric) * _by_ring(fabric.ranks)
    if algorithm == TREE:
        return _tree(protocol, fabric) * _tree_factor(protocol, nbytes)
    if algorithm == NVLS:
        return min(_switches(fabric), _between_in_a_tree(fabric))
    # The network adds: a node sends everything once, after a reduce-scatter within.
    within = fabric.bus_bytes_per_s * _by_ring(fabric.local)
    return min(within, fabric.network_bytes_per_s) * COLLNET_SHARE


def ring_bus_bytes_per_s(protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Bytes a second over each link of a ring: LL sends a flag with every word, LL128 every 15."""
    bus = min(fabric.bus_bytes_per_s, fabric.network_bytes_per_s)
    if protocol == LL:
        old = fabric.medium == NVLINK and fabric.generation in ("volta", "ampere")
        share = LL_SHARE_OLD_NVLINK if old else LL_SHARE
        return min(bus * share, _most_of_ll(fabric), _filled_by_ll(nbytes, fabric))
    return bus * 0.92 if protocol == LL128 else bus


def _filled_by_ll(nbytes: float, fabric: Fabric) -> float:
    """What the channels carry that so few bytes are given to."""
    if fabric.medium != NVLINK:
        return inf
    of_a_channel = LL_THREADS * LL_THREAD_BYTES * fabric.ranks
    return max(1, min(nbytes // of_a_channel, fabric.channels)) * LL_CHANNEL


def _by_ring(ranks: int) -> float:
    """Each rank sends 2 (n - 1) pieces of 1/n: Patarasuk and Yuan (2009)."""
    return ranks / (2 * (ranks - 1)) if ranks > 1 else inf


def _switches(fabric: Fabric) -> float:
    """A GPU reads a share of all sums, which takes all that all have, and writes it to all: 1 + 1/n
    of the bytes each way. Its blocks handle all of it, at so much a channel; over several nodes
    they copy to and from the network's buffers, too."""
    sent = (fabric.local + 1) / fabric.local
    copying = NVLS_TREE_SHARE if fabric.nodes > 1 else 1.0
    return min(fabric.bus_bytes_per_s / sent, fabric.nvls_channels * NVLS_CHANNEL * copying)


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
    factors = TREE_FACTORS[protocol]
    return factors[power] if power < len(factors) else 1.0


def _most_of_ll(fabric: Fabric) -> float:
    if fabric.nodes == 1:
        return LL_GPU[fabric.generation] * GIGA
    return (LL_AMD if fabric.amd else LL_INTEL)[min(fabric.nodes, 3) - 2] * GIGA


# --- filling the pipeline -------------------------------------------------------------------------


def fill_s(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Seconds until all channels of a pipeline are full, besides those that its bytes take.

    None in LL, whose threads hand on word by word, over PCIe, and in trees within a node, which
    NCCL's table corrects; rings in Simple have their plateau instead within a node, but Ampere's
    both. Where the network slows a ring down, a first chunk is copied as fast as within a node, and
    then sent.
    """
    within = fabric.nodes == 1
    if fabric.medium != NVLINK or protocol == LL or (within and algorithm == TREE):
        return 0.0
    chunk_bytes = _chunk_bytes(algorithm, protocol, fabric)
    first = min(nbytes, blocks(algorithm, fabric) * _parts(algorithm, fabric) * chunk_bytes)
    if algorithm == RING:
        fabric = replace(fabric, network_bytes_per_s=inf)
    return first / bandwidth(algorithm, protocol, nbytes, fabric)


def _chunk_bytes(algorithm: str, protocol: str, fabric: Fabric) -> int:
    if algorithm != RING or (fabric.nodes == 1 and fabric.generation == "ampere"):
        return CHUNK_BYTES
    return 0 if fabric.nodes == 1 and protocol == SIMPLE else RING_CHUNK_BYTES[protocol]


def hops_s(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Seconds that a tree's chain of blocks needs for what they handle at once, in LL over NVLink.

    All threads of a block store their words before the next GPU's block has them all, at every step
    up and down. NCCL's table has the latency of one word; in rings `ring_bus_bytes_per_s` has this.
    """
    if algorithm != TREE or protocol != LL or fabric.medium != NVLINK:
        return 0.0
    at_once = LL_THREADS * LL_THREAD_BYTES
    return 2 * (fabric.local - 1) * min(nbytes, at_once) / LL_CHANNEL


def _parts(algorithm: str, fabric: Fabric) -> int:
    """Into how many parts, one after the other, each channel's bytes are cut: one for each rank, or
    for each that reads its share of the sums where the network or the switches add."""
    return fabric.local if algorithm == COLLNET else fabric.ranks


# --- latency --------------------------------------------------------------------------------------


def latency_s(algorithm: str, protocol: str, nbytes: float, fabric: Fabric) -> float:
    """Seconds that an all-reduce takes however little there is to sum."""
    at = PROTOCOLS.index(protocol)
    if algorithm == RING:
        return rounds_latency_s(protocol, nbytes, 2, fabric)
    within = STEP_US[fabric.medium][algorithm][at]
    begin_us = BEGIN_US.get(fabric.generation, 0.0)
    between = _between_us(algorithm, at, fabric) if fabric.nodes > 1 else 0.0
    if algorithm in (TREE, NVLS) and fabric.nodes > 1:
        between += post_us(protocol, fabric)
    levels = fabric.nodes.bit_length() - 1
    if algorithm == TREE:
        steps_us = (fabric.local - 1) * within + levels * between
        return (BASE_US[TREE][at] + begin_us + 2 * steps_us) * MICRO
    if algorithm == NVLS:
        return (begin_us + within + 2 * levels * between) * MICRO
    inside = min(1, fabric.local - 1) * within + (fabric.local - 1) * COLLNET_ARITY_US
    return (begin_us + 2 * inside + between) * MICRO


def rounds_latency_s(protocol: str, nbytes: float, rounds: int, fabric: Fabric) -> float:
    """The same of so many rounds of a ring, in which each rank handles a part of the bytes."""
    steps, crossing = rounds * (fabric.ranks - 1), rounds * (fabric.nodes - 1)
    far_s = crossing * fabric.network_latency_s
    near_s = ring_latency_s(protocol, steps, crossing, fabric) - far_s
    return near_s * _plateau(protocol, nbytes, fabric) + far_s


def ring_latency_s(protocol: str, steps: int, crossing: int, fabric: Fabric) -> float:
    """Seconds of so many steps along a ring, of which `crossing` go from node to node."""
    at = PROTOCOLS.index(protocol)
    within = STEP_US[fabric.medium][RING][at]
    if fabric.nodes > 1:
        within = max(within, post_us(protocol, fabric))
    between = _between_us(RING, at, fabric)
    once = BASE_US[RING][at] + BEGIN_US.get(fabric.generation, 0.0)
    return (once + (steps - crossing) * within + crossing * between) * MICRO


def _between_us(algorithm: str, at: int, fabric: Fabric) -> float:
    return STEP_US["network"][algorithm][at] + fabric.network_latency_s / MICRO


def post_us(protocol: str, fabric: Fabric) -> float:
    """Microseconds in which a host hands one message to the network."""
    once = POST_US_AMD if fabric.amd else POST_US
    return once * (SIMPLE_POSTS if protocol == SIMPLE else 1)


def _plateau(protocol: str, nbytes: float, fabric: Fabric) -> float:
    """How many times as long steps take: over PCIe, too, only between nodes."""
    long = nbytes / (fabric.ranks * fabric.channels) >= 64
    ramps = protocol == SIMPLE and (fabric.nodes > 1 or fabric.medium == NVLINK)
    return PLATEAU[fabric.generation] if ramps and long else 1.0
