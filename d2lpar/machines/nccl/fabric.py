"""What a collective runs over, as NCCL sees it: ranks on nodes, and the rates between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from ..hardware import GIGA, MICRO, Accelerator, Link, Machine
from .tables import (
    AMPERE_BUS,
    ETHERNET_SHARE,
    ETHERNETS,
    HOST,
    HOST_SHARE,
    HOST_TO_AND_FRO,
    INTEL_P2P_OVERHEAD,
    LINK,
    MOST_CHANNELS,
    NETWORK_CHANNEL,
    NETWORK_LATENCY_S,
    NVLINK,
    NVLS_CHANNELS,
    NVLS_CHANNELS_OF_SEVERAL_NODES,
    PCIE,
    PCIE_CHANNELS,
    PLUGIN_US,
)

_FAST_LINKS = ("NVLink", "Infinity Fabric", "xGMI")
_GENERATIONS = {"ampere": "ampere", "ada": "ampere", "hopper": "hopper", "blackwell": "blackwell"}


@dataclass(frozen=True)
class Fabric:
    """What a collective runs over: ranks, evenly on so many nodes, and the rates between them.

    `bus_bytes_per_s` is what one GPU can send within its node while it receives as much;
    `network_bytes_per_s` what a node can send to others, over all its ports. `medium` is "nvlink",
    "pcie", or "host" where GPUs have no peers and go through the host's memory; `generation` is
    "volta" (and before), "ampere", "hopper" or "blackwell". `switch_adds`: NVSwitches sum what
    passes through them (NVLS); `network_adds`: the network's do (SHARP). `network_latency_s` is
    what a message over the network takes beyond what NCCL's tables have for it; `tuned` says that
    the network's plugin chooses algorithms, and knows better than NCCL.
    """

    ranks: int
    nodes: int
    bus_bytes_per_s: float
    network_bytes_per_s: float = inf
    medium: str = NVLINK
    generation: str = "volta"
    amd: bool = False
    switch_adds: bool = False
    network_adds: bool = False
    network_latency_s: float = 0.0
    tuned: bool = False

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.nodes < 1 or self.ranks % self.nodes:
            raise ValueError(
                f"a collective takes two ranks or more, evenly on its nodes, not {self.ranks} "
                f"on {self.nodes}"
            )

    @property
    def local(self) -> int:
        """Ranks on a node."""
        return self.ranks // self.nodes

    @property
    def to_and_fro(self) -> Fabric:
        """The same for what all ranks send at once: two without peers share one way."""
        if self.medium != HOST or self.ranks != 2 or self.nodes > 1:
            return self
        return replace(self, bus_bytes_per_s=self.bus_bytes_per_s * HOST_TO_AND_FRO)

    @property
    def channels(self) -> int:
        """How many rings (or trees) a collective is cut into, each with a block of its own."""
        if self.medium != NVLINK:
            return PCIE_CHANNELS[self.medium]
        links = self.bus_bytes_per_s / (LINK[self.generation] * GIGA)
        ports = self.network_bytes_per_s / NETWORK_CHANNEL
        return max(2, round(min(2 * links, ports, MOST_CHANNELS)))

    @property
    def nvls_channels(self) -> int:
        """The same for sums in the switches."""
        channels = NVLS_CHANNELS if self.nodes == 1 else NVLS_CHANNELS_OF_SEVERAL_NODES
        return channels.get(self.generation, 0)


def fabric_of(machine: Machine, ranks: int | None = None, *, network_adds: bool = False) -> Fabric:
    """The first `ranks` GPUs of a machine (default: all) as NCCL sees them.

    Raises ValueError for more ranks than the machine has GPUs, for less than two, and for a number
    that does not fill its nodes evenly.
    """
    count = len(machine.accelerators)
    ranks = count if ranks is None else ranks
    if not 2 <= ranks <= count:
        raise ValueError(
            f"a collective on {machine.name} takes 2 to {count} ranks, one a GPU, not {ranks}: "
            "take fewer, or name a larger machine or a cluster"
        )
    nodes = Counter(machine.node_of(rank) for rank in range(ranks))
    if len(set(nodes.values())) > 1:
        raise ValueError(
            f"{ranks} ranks do not fill nodes of {machine.name} evenly: take a multiple of "
            f"{max(nodes.values())}"
        )
    return fabric_among(machine, range(ranks), network_adds=network_adds)


def fabric_among(machine: Machine, devices: Sequence[int], *, network_adds: bool = False) -> Fabric:
    """What joins these accelerators; on unevenly filled nodes, as if all were as full as one."""
    by_node: dict[int, list[int]] = {}
    for device in devices:
        by_node.setdefault(machine.node_of(device), []).append(device)
    fullest = max(by_node.values(), key=len)
    return Fabric(
        len(by_node) * len(fullest),
        len(by_node),
        _within_bytes_per_s(machine, fullest),
        _between_bytes_per_s(machine, devices) / len(by_node) if len(by_node) > 1 else inf,
        medium_of(machine),
        generation_of(machine.accelerators[devices[0]]),
        amd="EPYC" in machine.host.name,
        switch_adds=_switches_add(machine),
        network_adds=network_adds,
        network_latency_s=network_latency_s(machine.network),
        tuned=is_tuned(machine.network),
    )


def is_tuned(network: Link | None) -> bool:
    """Whether a network's plugin chooses NCCL's algorithms: Amazon's does."""
    return network is not None and network.name.startswith("efa-")


def network_latency_s(network: Link | None) -> float:
    """What a network takes for a message beyond NCCL's tables: its own, and what plugins report."""
    if network is None:
        return 0.0
    reported_us = next((us for kind, us in PLUGIN_US.items() if network.name.startswith(kind)), 0.0)
    return reported_us * MICRO + max(0.0, network.latency_s - NETWORK_LATENCY_S)


def network_bytes_per_s(network: Link) -> float:
    """Bytes a second that one port reaches while all of a cluster send."""
    rate = network.payload_bytes_per_s
    if any(kind in network.name for kind in ETHERNETS):
        return min(rate, network.bytes_per_s * ETHERNET_SHARE)
    return rate


def generation_of(accelerator: Accelerator) -> str:
    """The row of NCCL's tables for a GPU: "volta" stands for all that are older, too."""
    return _GENERATIONS.get(accelerator.architecture, "volta")


def medium_of(machine: Machine) -> str:
    """What GPUs of a node exchange over: "nvlink", "pcie", or "host" without peers.

    AMD's links count as NVLink: RCCL has NCCL's tables.
    """
    if machine.peer is None:
        return HOST
    return NVLINK if machine.peer.name.startswith(_FAST_LINKS) else PCIE


def node_network_bytes_per_s(machine: Machine) -> float:
    """Bytes a second that one node of a cluster can send, over all its ports, under load.

    Raises ValueError for a machine without a network.
    """
    if machine.network is None:
        raise ValueError(f"{machine.name} has no network: name a cluster")
    ports = machine.network_port_of(len(machine.accelerators) - 1) + 1
    return network_bytes_per_s(machine.network) * ports / machine.nodes


def _switches_add(machine: Machine) -> bool:
    joined = machine.peer is not None and "NVSwitch" in machine.peer.name
    return joined and generation_of(machine.accelerators[0]) in NVLS_CHANNELS


def _within_bytes_per_s(machine: Machine, devices: Sequence[int]) -> float:
    """What each of these accelerators of one node sends in a ring, while it receives as much."""
    if machine.peer is None:
        return _through_host_bytes_per_s(machine, devices)
    rate = machine.peer.payload_bytes_per_s
    if medium_of(machine) == NVLINK:
        ampere = machine.accelerators[devices[0]].architecture == "ampere"
        return min(rate, AMPERE_BUS) if ampere else rate
    if "Xeon" in machine.host.name and len({machine.uplink_of(d) for d in devices}) > 1:
        rate /= INTEL_P2P_OVERHEAD
    return min(rate, _across_sockets_bytes_per_s(machine, devices))


def _through_host_bytes_per_s(machine: Machine, devices: Sequence[int]) -> float:
    """Each writes what it sends to the host's memory, and its neighbour reads it there: over its
    own link both ways at once, over a link that it may share, and twice over the memory's bus."""
    sharing = Counter(machine.uplink_of(device) for device in devices)
    rate = machine.host_link.payload_bytes_per_s * HOST_SHARE / max(sharing.values())
    if machine.host.memory_bytes_per_s is not None:
        rate = min(rate, machine.host.memory_bytes_per_s / (2 * len(devices)))
    return min(rate, _across_sockets_bytes_per_s(machine, devices))


def _across_sockets_bytes_per_s(machine: Machine, devices: Sequence[int]) -> float:
    """A ring crosses from socket to socket once each way, whatever the number of its GPUs."""
    if machine.socket_link is None or len({machine.socket_of(d) for d in devices}) == 1:
        return inf
    return machine.socket_link.payload_bytes_per_s


def _between_bytes_per_s(machine: Machine, devices: Sequence[int]) -> float:
    """What all ports of these send to other nodes; without GPUDirect, through their hosts' memory.

    Then a GPU writes to that memory while it reads what has come, and the network does the same.
    """
    assert machine.network is not None, "a machine of several nodes has a network"
    ports = {machine.network_port_of(device) for device in devices}
    rate = network_bytes_per_s(machine.network) * len(ports)
    if machine.gpu_direct:
        return rate
    uplinks = {machine.uplink_of(device) for device in devices}
    return min(rate, machine.host_link.payload_bytes_per_s * HOST_SHARE * len(uplinks))
