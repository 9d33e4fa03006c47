"""Which rank does what: a grid of data × pipeline × tensor ranks, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, inf, prod

import torch

from ...machines import collective_cost as cost
from ...machines.hardware import MOST_ACCELERATORS, Accelerator, Host, Link, Machine
from ...timeline.inputs import checked

AXES = ("data", "pipeline", "tensor")
ALL_AXES = ("data", "pipeline", "context", "tensor")


@dataclass(frozen=True)
class Mesh:
    """Sizes of the three axes. Neighbours along `tensor` have consecutive ranks, replicas lie
    furthest apart: what talks most stands together. `context` ranks share each sample's tokens;
    they lie between tensor ranks and stages. Raises ValueError for sizes below 1, and for more
    ranks than any machine has accelerators."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        if any(type(n) is not int or n < 1 for n in (*self.sizes, self.context)):
            wrong = self.sizes if self.context == 1 else (*self.sizes, self.context)
            raise ValueError(f"axes of a mesh are whole numbers from 1 on, not {wrong}")
        if self.size > MOST_ACCELERATORS:
            raise ValueError(
                f"{self} has {self.size} ranks, and a machine {MOST_ACCELERATORS} accelerators at "
                "most: take smaller axes"
            )

    def __str__(self) -> str:
        context = f" × context {self.context}" if self.context > 1 else ""
        return f"data {self.data} × pipeline {self.pipeline}{context} × tensor {self.tensor}"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Those of the axes, in the order of `AXES`."""
        return self.data, self.pipeline, self.tensor

    @property
    def size(self) -> int:
        """The number of ranks, one a GPU."""
        return prod(self._shape)

    @property
    def replicas(self) -> int:
        """Ranks that have the same parameters: those along data and context."""
        return self.data * self.context

    def grid(self) -> torch.Tensor:
        """The ranks, [data, pipeline, tensor], or [data, pipeline, context, tensor]."""
        return torch.arange(self.size).view(self._shape if self.context > 1 else self.sizes)

    def groups(self, axis: str) -> list[list[int]]:
        """The groups of ranks that work together along an axis, first group first."""
        at = self._at(axis)
        ranks = torch.arange(self.size).view(self._shape)
        return ranks.movedim(at, -1).reshape(-1, self._shape[at]).tolist()

    def stride(self, axis: str) -> int:
        """How many ranks lie between neighbours along an axis."""
        return prod(self._shape[self._at(axis) + 1 :])

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.data, self.pipeline, self.context, self.tensor

    def _at(self, axis: str) -> int:
        if axis not in ALL_AXES:
            raise ValueError(f"the axes of a mesh are {', '.join(AXES)}, not {axis!r}")
        return ALL_AXES.index(axis)


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
    @checked
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
        """What the groups along an axis, of two ranks at least, run their collectives over."""
        size = getattr(mesh, axis)
        return self._over(size, gcd(size, max(self.node_size // mesh.stride(axis), 1)))

    def replicas(self, mesh: Mesh, count: int) -> cost.Fabric:
        """The same for groups of `count` neighbouring replicas, those of a context first."""
        contexts = min(mesh.context, count)
        near = gcd(contexts, max(self.node_size // mesh.stride("context"), 1))
        far = gcd(count // contexts, max(self.node_size // mesh.stride("data"), 1))
        return self._over(count, near * far if near == contexts else near)

    def copies(self, mesh: Mesh, shard: int) -> cost.Fabric:
        """The same for those replicas that hold the same part of `shard` parts."""
        stride = mesh.stride("data") * max(shard // mesh.context, 1)
        count = mesh.replicas // shard
        return self._over(count, gcd(count, max(self.node_size // stride, 1)))

    def _over(self, size: int, local: int) -> cost.Fabric:
        """Groups of `size` ranks, `local` of them on a node.

        All groups exchange at once: each has the share of its node's ports that it has of its GPUs.
        """
        nodes = size // local
        rate = self.node_bytes_per_s * local / self.node_size if nodes > 1 else inf
        return replace(self.pair, ranks=size, nodes=nodes, network_bytes_per_s=rate)

    def send_s(self, mesh: Mesh, nbytes: float) -> float:
        """Seconds to hand `nbytes` to the next stage, over the network where stages lie apart.

        A node's ranks of one stage do so at once, and share its ports.
        """
        if mesh.stride("data") <= self.node_size or self.network is None:
            return self.peer.latency_s + nbytes / self.peer.payload_bytes_per_s
        share = self.node_bytes_per_s / min(mesh.tensor * mesh.context, self.node_size)
        return self.network.latency_s + nbytes / min(share, self.network.payload_bytes_per_s)
