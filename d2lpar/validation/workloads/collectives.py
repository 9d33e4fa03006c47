"""Collectives of a library, in nccl-tests' bus bandwidth: what a ring would send over each link."""

from __future__ import annotations

from functools import partial

from ...machines import collective_cost as cost
from ...machines.hardware import Machine
from ..parameters import Naive, Parameters, SimulatedRun

# nccl-tests' PERFORMANCE.md: bytes on a link, by the bytes of the collective, for so many ranks.
_SENT = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}
_SECONDS = {
    "all_reduce": cost.all_reduce_s,
    "reduce_scatter": cost.reduce_scatter_s,
    "all_gather": cost.all_gather_s,
    "all_to_all": cost.all_to_all_s,
    "broadcast": cost.broadcast_s,
    "reduce": cost.reduce_s,
}


def collective(name: str, p: Parameters, machine: Machine) -> SimulatedRun:
    """`bytes` in all on `ranks`; by a fixed `algorithm` and `protocol` or those that NCCL would
    take, `processes` that drive all of them (by default one each). Raises ValueError for ranks on
    other nodes than the row says, and for processes that are more than the ranks, or none."""
    nbytes, ranks = p.integer("bytes"), p.integer("ranks")
    algorithm, protocol = p.text("algorithm", None), p.text("protocol", None)
    if not p.flag("peer", True):
        machine = machine.with_peer(None)
    fabric = cost.fabric_of(machine, ranks, network_adds=algorithm == cost.COLLNET)
    if fabric.nodes != p.integer("nodes", 1):
        raise ValueError(f"{ranks} ranks of {machine.name} are on {fabric.nodes} nodes")
    if name == "send_recv":
        seconds = cost.send_s(nbytes, fabric, protocol=protocol)
    else:
        seconds = _SECONDS[name](nbytes, fabric, algorithm=algorithm, protocol=protocol)
    processes = p.integer("processes", ranks)
    if not 1 <= processes <= ranks:
        raise ValueError(f"{ranks} ranks are driven by 1 to {ranks} processes, not {processes}")
    seconds = cost.launched_by_one_thread_s(seconds, ranks // processes)
    sent_bytes = nbytes * _SENT[name](ranks)
    naive = Naive(sent_bytes / _link_bytes_per_s(machine, fabric.nodes))
    return SimulatedRun(seconds, bytes=sent_bytes, naive=naive)


def _link_bytes_per_s(machine: Machine, nodes: int) -> float:
    """The rate of the slowest wire that the ranks use."""
    within = (machine.peer or machine.host_link).bytes_per_s
    if nodes == 1 or machine.network is None:
        return within
    return min(within, cost.node_network_bytes_per_s(machine) / machine.network.payload_share)


all_reduce = partial(collective, "all_reduce")
OTHERS = {name: partial(collective, name) for name in _SENT if name != "all_reduce"}
