"""All-reduce of a library, in nccl-tests' bus bandwidth."""

from __future__ import annotations

from ...machines import collective_cost as cost
from ...machines.hardware import Machine
from ..parameters import Naive, Parameters, SimulatedRun


def all_reduce(p: Parameters, machine: Machine) -> SimulatedRun:
    """`bytes` on every one of `ranks`; by a fixed `algorithm` or the one that NCCL would take."""
    nbytes, ranks = p.integer("bytes"), p.integer("ranks")
    algorithm, protocol = p.text("algorithm", None), p.text("protocol", None)
    fabric = cost.fabric_of(machine, ranks, network_adds=algorithm == cost.COLLNET)
    if fabric.nodes != p.integer("nodes", 1):
        raise ValueError(f"{ranks} ranks of {machine.name} are on {fabric.nodes} nodes")
    seconds = cost.all_reduce_s(nbytes, fabric, algorithm=algorithm, protocol=protocol)
    bus_bytes = cost.bus_bandwidth(nbytes, ranks, seconds) * seconds
    naive = Naive(bus_bytes / _link_bytes_per_s(machine, fabric.nodes))
    return SimulatedRun(seconds, bytes=bus_bytes, naive=naive)


def _link_bytes_per_s(machine: Machine, nodes: int) -> float:
    """The rate of the slowest wire that the ranks use."""
    within = (machine.peer or machine.host_link).bytes_per_s
    if nodes == 1 or machine.network is None:
        return within
    return min(within, cost.node_network_bytes_per_s(machine) / machine.network.payload_share)
