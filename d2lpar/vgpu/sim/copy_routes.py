"""How copies travel: the ports that they occupy on their way, and the links that set their speed.

Every accelerator has a port up to its host and one down from it, each with a copy engine, as
data-centre GPUs have; `Machine.uplink_shared_by` neighbours share the way beyond these, as behind a
PCIe switch. With `Machine.peer` it has a port out to its peers and one in from them; peers on the
host's own bus use the ports of that, and what lies beyond a switch only if they are not behind the
same one; between the sockets of a host they share the `Machine.socket_links`, one a copy, at their
rate if that is lower. Nodes are joined by network ports, which `Machine.network_shared_by`
neighbours share.
"""

from __future__ import annotations

from typing import NamedTuple

from ...machines import Link, Machine

Port = tuple[str, int]


class Hop(NamedTuple):
    """One transfer to `target`: all ports are occupied for as long as `link` needs."""

    ports: tuple[Port, ...]
    link: Link
    target: int | None


def route(link: Machine | Link | None, source: int, target: int) -> list[Hop]:
    """The transfers of a copy between two ranks; none within a rank, or if sending takes no time.

    A `Link` joins all ranks, each with a port out and a port in; on a `Machine` ranks are
    accelerators. If `link` is None, sending takes no time.
    """
    if link is None or source == target:
        return []
    if isinstance(link, Link):
        return [Hop((("out", source), ("in", target)), link, target)]
    return hops(link, source, target)


def hops(machine: Machine, source: int | None, target: int | None) -> list[Hop]:
    """The transfers, one after the other, of a copy between two accelerators (None: the host).

    Every node has a host of its own, and a copy from or to the host stays within the node. Between
    nodes the network is the way from memory to memory (GPUDirect). Without peers a copy goes
    through the host's memory: up and down, piece by piece (`staging.transfers`).
    """
    if source is None:
        if target is None:
            return []
        return [Hop(_host_ports(machine, "down", target), machine.host_link, target)]
    if target is None:
        return [Hop(_host_ports(machine, "up", source), machine.host_link, None)]
    if machine.node_of(source) != machine.node_of(target):
        assert machine.network is not None  # a machine of several nodes has one
        out, into = machine.network_port_of(source), machine.network_port_of(target)
        return [Hop((("network out", out), ("network in", into)), machine.network, target)]
    if machine.peer is None:
        return hops(machine, source, None) + hops(machine, None, target)
    if machine.peer != machine.host_link:
        return [Hop((("peer out", source), ("peer in", target)), machine.peer, target)]
    up, down = _host_ports(machine, "up", source), _host_ports(machine, "down", target)
    if machine.uplink_of(source) == machine.uplink_of(target):
        up, down = up[:1], down[:1]
    across, link = _between_sockets(machine, source, target)
    return [Hop(up + across + down, link, target)]


def _between_sockets(machine: Machine, source: int, target: int) -> tuple[tuple[Port, ...], Link]:
    """The port from one processor's bus to another's, and the slower link of the whole way.

    A copy takes one of the links between them; neighbours take one after the other.
    """
    assert machine.peer is not None, "what has no peers goes through the host's memory"
    start, end = machine.socket_of(source), machine.socket_of(target)
    if machine.socket_link is None or start == end:
        return (), machine.peer
    links = (machine.peer, machine.socket_link)
    port = start * machine.socket_links + source % machine.socket_links
    return (("socket out", port),), min(links, key=lambda link: link.payload_bytes_per_s)


def _host_ports(machine: Machine, direction: str, accelerator: int) -> tuple[Port, ...]:
    """The accelerator's own port, and beyond it the one that it shares."""
    own = (f"host {direction}", accelerator)
    if machine.uplink_shared_by == 1:
        return (own,)
    return (own, (f"uplink {direction}", machine.uplink_of(accelerator)))
