"""Which rank does what: a grid of data × pipeline × tensor ranks, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, inf, prod

import torch

from ...machines import collective_cost as cost
from ...machines.hardware import Accelerator, Host, Link, Machine

AXES = ("data", "pipeline", "tensor")


@dataclass(frozen=True)
class Mesh:
    """Sizes of the three axes. Neighbours along `tensor` have consecutive ranks, replicas lie
    furthest apart: what talks most stands together. Raises ValueError for sizes below 1."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if any(type(n) is not int or n < 1 for n in self.sizes):
            raise ValueError(f"axes of a mesh are whole numbers from 1 on, not {self.sizes}")

    def __str__(self) -> str:
        return f"data {self.data} × pipeline {self.pipeline} × tensor {self.tensor}"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Those of the axes, in the order of `AXES`."""
        return self.data, self.pipeline, self.tensor

    @property
    def size(self) -> int:
        """The number of ranks, one a GPU."""
        return self.data * self.pipeline * self.tensor

    def grid(self) -> torch.Tensor:
        """The ranks, [data, pipeline, tensor]."""
        return torch.arange(self.size).view(self.sizes)

    def groups(self, axis: str) -> list[list[int]]:
        """The groups of ranks that work together along an axis, first group first."""
        at = self._at(axis)
        return self.grid().movedim(at, -1).reshape(-1, self.sizes[at]).tolist()

    def stride(self, axis: str) -> int:
        """How many ranks lie between neighbours along an axis."""
        return prod(self.sizes[self._at(axis) + 1 :])

    def _at(self, axis: str) -> int:
        if axis not in AXES:
            raise ValueError(f"the axes of a mesh are {', '.join(AXES)}, not {axis!r}")
        return AXES.index(axis)


@dataclass(frozen=True)
class Wiring:
    """What a machine's ranks exchange over: how many share a node, links within and between nodes.

    `pair` are two GPUs of a node as NCCL sees them, `node_bytes_per_s` is what a node can send to
    others over all its ports.
    """

    accelerator: Accelerator
    host: Host
    node_size: int
    peer: Link
    network: Link | None
    pair: cost.Fabric
    node_bytes_per_s: float

    @classmethod
    def of(cls, machine: Machine) -> Wiring:
        """That of a machine, whose accelerators are all like its first."""
        node = replace(machine, node_size=None, network=None, slots=None)
        several = machine.nodes > 1
        return cls(
            machine.accelerators[0],
            machine.host,
            machine.node_size or len(machine.accelerators),
            machine.peer or machine.host_link,
            machine.network,
            cost.fabric_of(node.with_accelerators(2)),
            cost.node_network_bytes_per_s(machine) if several else inf,
        )

    def fabric(self, mesh: Mesh, axis: str) -> cost.Fabric:
        """What the groups along an axis, of two ranks at least, run their collectives over.

        All groups do so at once: each has the share of its node's ports that it has of its GPUs.
        """
        stride, size = mesh.stride(axis), getattr(mesh, axis)
        local = gcd(size, max(self.node_size // stride, 1))
        nodes = size // local
        rate = self.node_bytes_per_s * local / self.node_size if nodes > 1 else inf
        return replace(self.pair, ranks=size, nodes=nodes, network_bytes_per_s=rate)

    def send_s(self, mesh: Mesh, nbytes: float) -> float:
        """Seconds to hand `nbytes` to the next stage, over the network where stages lie apart.

        A node's ranks of one stage do so at once, and share its ports.
        """
        if mesh.tensor * mesh.pipeline <= self.node_size or self.network is None:
            return self.peer.latency_s + nbytes / self.peer.payload_bytes_per_s
        share = self.node_bytes_per_s / min(mesh.tensor, self.node_size)
        return self.network.latency_s + nbytes / min(share, self.network.payload_bytes_per_s)
