"""The dependency graph of a program, traced while it runs: which operation needs whose result.

Data flows through memory: an operation depends on whoever last wrote what it reads. Views and mere
reservations of memory are no operations of their own here; what they show has been written by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import networkx
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ..vgpu.torch_backend.private.torch_operators import schema_of

HOST = "host"

_COPIES = {"_to_copy", "copy_", "_copy_from"}
# They write their first argument without reading it.
_OVERWRITE = {
    *("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"),
    *("cauchy_", "geometric_", "log_normal_"),
}

Given = list[tuple[Any, object]]  # arguments of a schema, and their values


@dataclass(frozen=True)
class Node:
    """An operation, or a tensor from before the trace (`is_input`), and where it is.

    `place` is "host", a device ("vgpu:0"), or for a copy between two of them the one it ends on.
    """

    number: int
    name: str
    place: str
    is_input: bool = False
    is_copy: bool = False


@dataclass
class Graph:
    """Nodes in the order in which they ran; `edges` are pairs (earlier, later) of their numbers."""

    nodes: list[Node] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def operations(self) -> list[Node]:
        """The nodes that are no inputs."""
        return [node for node in self.nodes if not node.is_input]

    @property
    def places(self) -> list[str]:
        """Where the nodes are: the host first, then devices by their numbers."""
        return sorted({node.place for node in self.nodes}, key=lambda p: (p != HOST, len(p), p))

    def digraph(self) -> networkx.DiGraph:
        """The same as a networkx graph of node numbers, for its algorithms."""
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(len(self.nodes)))
        graph.add_edges_from(self.edges)
        return graph

    def longest_chain(self) -> list[Node]:
        """Operations each of which needs the one before: no machine does them at once."""
        chain = networkx.dag_longest_path(self.digraph())
        return [self.nodes[n] for n in chain if not self.nodes[n].is_input]

    def depends(self, later: Node, earlier: Node) -> bool:
        """Whether `later` needs the result of `earlier`, perhaps by way of others."""
        return networkx.has_path(self.digraph(), earlier.number, later.number)


@contextmanager
def trace_graph(**inputs: torch.Tensor) -> Iterator[Graph]:
    """`with trace_graph(X=X, W=W) as graph:` notes every operation of the block, backward too.

    The keywords name tensors from before the block; others appear by their shapes when they are
    first read. Works on every device. Only this thread is traced.
    """
    tracer = _Tracer()
    for name, tensor in inputs.items():
        tracer.add_input(tensor, name)
    with tracer:
        yield tracer.graph


class _Tracer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self._writers: dict[int, int] = {}  # storage -> the node that wrote it last
        self._readers: dict[int, set[int]] = {}  # storage -> the nodes that read that
        self._kept: list[object] = []  # or a new storage might get the number of an old one

    def add_input(self, tensor: torch.Tensor, name: str) -> int:
        node = self._add(name, _place(tensor), is_input=True)
        self._writers[self._storage(tensor)] = node.number
        return node.number

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        if not _is_silent(func):
            self._note(func, _given(func, args, kwargs), outputs)
        return outputs

    def _note(self, func: torch._ops.OpOverload, given: Given, outputs: object) -> None:
        name = schema_of(func).name.removeprefix("aten::")
        reads = list(_tensors([value for a, value in given if not _is_overwritten(a, name)]))
        written = list(_tensors([value for a, value in given if _is_written(a)]))
        results = list(_tensors([outputs]))
        needed = {self._writer(t) for t in reads}
        place = _place((written or results or reads or [torch.empty(0)])[0])
        is_copy = name in _COPIES and any(_place(t) != place for t in reads)
        node = self._add("copy" if is_copy else name.strip("_"), place, is_copy=is_copy)
        for tensor in written:
            needed |= self._readers.get(self._storage(tensor), set())
        self.graph.edges |= {(other, node.number) for other in needed if other != node.number}
        for tensor in reads:
            self._readers.setdefault(self._storage(tensor), set()).add(node.number)
        for tensor in (*written, *results):
            key = self._storage(tensor)
            self._writers[key] = node.number
            self._readers[key] = set()

    def _writer(self, tensor: torch.Tensor) -> int:
        known = self._writers.get(self._storage(tensor))
        shape = " × ".join(map(str, tensor.shape)) or "scalar"
        return self.add_input(tensor, shape) if known is None else known

    def _add(self, name: str, place: str, **kind: bool) -> Node:
        node = Node(len(self.graph), name, place, **kind)
        self.graph.nodes.append(node)
        return node

    def _storage(self, tensor: torch.Tensor) -> int:
        """What is the same for a tensor and its views: its share of a device, or its storage."""
        share = getattr(tensor, "vgpu_allocation", None)
        if share is None:
            share = tensor.untyped_storage()
            self._kept.append(share)
            return StorageWeakRef(share).cdata
        self._kept.append(share)
        return id(share)


def _is_silent(func: torch._ops.OpOverload) -> bool:
    schema = schema_of(func)
    aliases = [r.alias_info for r in schema.returns]
    is_view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
    silent = ("empty", "detach", "_unsafe_view", "is_same_size", "_has_compatible")
    return is_view or schema.name.removeprefix("aten::").startswith(silent)


def _given(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Given:
    """The arguments of the operation's schema that were given, and their values."""
    arguments = schema_of(func).arguments
    named = [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
    return [*zip(arguments, args, strict=False), *named]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_overwritten(argument: Any, name: str) -> bool:
    """Whether an argument of the operation `name` is written without having been read."""
    return _is_written(argument) and (argument.is_out or name in _OVERWRITE)


def _place(tensor: torch.Tensor) -> str:
    return HOST if tensor.device.type == "cpu" else str(tensor.device)


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
