"""What joins the devices, level by level: GPUs in a node, nodes in a rack, racks.

Devices are numbered, not built: a network of 100,000 is as small as one of two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, prod

from ...machines import collective_cost as cost
from ...machines.hardware import Link, Machine
from ...timeline.inputs import Count, NotNegative, Positive, check_fields, checked


@dataclass(frozen=True)
class Level:
    """One level: up to `members` GPUs (or nodes, or racks) that are joined directly.

    `bytes_per_s` is what one member sends to others while it receives as much, over all its ports;
    a message takes `latency_s` besides.
    """

    name: str
    members: float
    latency_s: NotNegative
    bytes_per_s: Positive

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.members >= 1:
            raise ValueError(f"members of {self.name} are 1 or more, not {self.members!r}")


@dataclass(frozen=True)
class Network:
    """Levels from the inside out, the last one without limit; made by `Network.of`.

    `fabric` is the same as NCCL's model sees it, for all GPUs of one node.
    """

    levels: tuple[Level, ...]
    fabric: cost.Fabric
    node_bytes_per_s: float = inf

    def __post_init__(self) -> None:
        check_fields(self)
        if not (self.levels and self.node_bytes_per_s > 0):
            raise ValueError(
                "a network has levels, and nodes that send: make it by Network.of, not of "
                f"{self.levels!r} and {self.node_bytes_per_s!r} bytes a second"
            )

    @classmethod
    @checked
    def of(
        cls,
        machine: Machine,
        network: Link | None = None,
        *,
        ports: Count = 1,
        nodes_per_rack: Count | None = None,
        oversubscription: Positive = 1.0,
    ) -> Network:
        """The network of a cluster, or of as many `machine`s as are needed, joined by `network`.

        A node has `ports` of it. With `nodes_per_rack` there is a further level: what leaves a rack
        has so many nodes' bandwidth, divided by `oversubscription`. Raises ValueError for ports or
        nodes below 1, an oversubscription below 1, and a network given for a cluster.
        """
        if machine.nodes > 1 and network is not None:
            raise ValueError(f"{machine.name} is a cluster already; leave its network as it is")
        if not 1 <= oversubscription < inf:
            raise ValueError(f"oversubscription is 1 or more, not {oversubscription!r}")
        if machine.nodes > 1:
            network, node_rate = machine.network, cost.node_network_bytes_per_s(machine)
        else:
            node_rate = cost.network_bytes_per_s(network) * ports if network else inf
        levels = [_within(machine, limited=network is not None)]
        if network is not None:
            levels.append(Level("node", nodes_per_rack or inf, network.latency_s, node_rate))
        if network is not None and nodes_per_rack:
            uplink = node_rate * nodes_per_rack / oversubscription
            levels.append(Level("rack", inf, network.latency_s, uplink))
        return cls(tuple(levels), _fabric_within(machine, network), node_rate)

    @checked
    def sizes(self, devices: Count) -> list[int]:
        """How many members each level has, inner ones first, for devices spread evenly.

        17 devices on nodes of 8 are three nodes of 6: as if there were 18. Raises ValueError for
        less than one device.
        """
        found, count = [], devices
        for level in self.levels:
            groups = max(ceil(count / level.members), 1)  # 0 of a level without limit
            found.append(ceil(count / groups))
            count = groups
        return found

    def fabric_of(self, devices: int) -> cost.Fabric:
        """So many devices, two at least, as NCCL's model sees them."""
        sizes = self.sizes(devices)
        nodes = prod(sizes[1:])
        rate = self.node_bytes_per_s if nodes > 1 else inf
        return replace(self.fabric, ranks=sizes[0] * nodes, nodes=nodes, network_bytes_per_s=rate)


def _fabric_within(machine: Machine, network: Link | None) -> cost.Fabric:
    """One node's GPUs, which exchange all at once; two at least."""
    count = max(machine.node_size or len(machine.accelerators), 2)
    node = replace(machine, node_size=None, network=None).with_accelerators(count)
    return replace(
        cost.fabric_of(node),
        network_latency_s=cost.network_latency_s(network),
        tuned=cost.is_tuned(network),
    )


def _within(machine: Machine, *, limited: bool) -> Level:
    """GPUs of a node: joined directly, or through the host, whose link neighbours may share."""
    link = machine.peer or machine.host_link
    members = (machine.node_size or len(machine.accelerators)) if limited else inf
    return Level("GPU", members, link.latency_s, link.payload_bytes_per_s)
