"""How long collectives take, and which ports they occupy: NCCL's model over a group's own links.

An all-reduce takes what `collective_cost` says. By ring it is a reduce-scatter followed by an
all-gather (Patarasuk and Yuan 2009), each with half of its steps and bytes; broadcast and reduce
send everything once around a pipelined ring (NCCL's tuning.cc: n bytes over n steps). All-to-all,
gather and scatter are sends side by side: the port that carries most decides. A send takes what a
copy does. NCCL's kernels slow others on their device down: that is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ...machines import Machine
from ...machines import collective_cost as nccl
from ..sim.copy_routes import Port, hops


def fabric_of(machine: Machine, devices: Sequence[int]) -> nccl.Fabric:
    """What joins these accelerators; on unevenly filled nodes, as if all were as full as one."""
    local = Counter(machine.node_of(device) for device in devices)
    nodes, most = len(local), max(local.values())
    group = replace(
        machine,
        accelerators=tuple(machine.accelerators[d] for d in devices[:1]) * (nodes * most),
        node_size=most,
    )
    fabric = nccl.fabric_of(group)
    if nodes == 1:
        return fabric
    assert machine.network is not None, "a machine of several nodes has a network"
    ports = len({machine.network_port_of(device) for device in devices})
    rate = machine.network.payload_bytes_per_s * ports / nodes
    return replace(fabric, network_bytes_per_s=rate)


def ports_of(machine: Machine, devices: Sequence[int]) -> tuple[Port, ...]:
    """The ports of a ring through these accelerators, in their order."""
    ring = zip(devices, [*devices[1:], devices[0]], strict=True)
    return _ports(machine, [pair for pair in ring if pair[0] != pair[1]])


def _ports(machine: Machine, ways: Sequence[tuple[int, int]]) -> tuple[Port, ...]:
    return tuple(dict.fromkeys(p for way in ways for h in hops(machine, *way) for p in h.ports))


def send(machine: Machine, source: int, target: int, nbytes: int) -> tuple[float, tuple[Port, ...]]:
    """Seconds and ports of a send between two accelerators: those of a copy."""
    seconds = sum(hop.link.seconds(nbytes) for hop in hops(machine, source, target))
    return seconds, _ports(machine, [(source, target)])


def collective_s(name: str, nbytes: int, fabric: nccl.Fabric) -> float:
    """Seconds of a collective; `nbytes` is the whole of what it sums, gathers or scatters.

    A barrier is an all-reduce of one number, as in c10d.
    """
    others = (fabric.ranks - 1) / fabric.ranks
    if name in ("all_reduce", "barrier"):
        return nccl.all_reduce_s(nbytes, fabric)
    if name in ("all_gather", "reduce_scatter"):
        return _half_ring_s(nbytes, others * nbytes, fabric)
    if name in ("broadcast", "reduce"):
        return _half_ring_s(nbytes, nbytes, fabric)
    within = (fabric.local - 1) / fabric.ranks * nbytes / fabric.bus_bytes_per_s
    between = (fabric.ranks - fabric.local) / fabric.ranks * nbytes / fabric.network_bytes_per_s
    senders = fabric.local if name == "all_to_all" else 1
    return _half_ring_s(0, 0, fabric) + max(within, senders * between)


def _half_ring_s(nbytes: int, sent_bytes: float, fabric: nccl.Fabric) -> float:
    """Half of the steps of an all-reduce by ring, and so many bytes over each of its links."""
    around = 2 * (fabric.ranks - 1) / fabric.ranks
    return min(
        nccl.latency_s(algorithm, protocol, nbytes, fabric) / 2
        + sent_bytes / (nccl.bandwidth(algorithm, protocol, nbytes, fabric) * around)
        for algorithm, protocol in nccl.choices(nbytes, fabric)
        if algorithm == nccl.RING
    )
