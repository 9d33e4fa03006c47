"""How the results of operations on lists of DTensors are sharded, worked out once for all ranks.

An optimizer's step hands hundreds of DTensors to one operation. The first time, torch takes seconds
to find out how its results are sharded, in each process; a thread that stands for a process would
take them, too. Ranks that ask the same get the same answer, but on their own mesh: what is kept
knows none.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

_PLAIN = (int, float, str, type(None), torch.dtype)


def once_for_all(propagate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Work it out for the first rank that asks, as `propagate` does, and tell the others.

    Other operations take little, and have answers that are not the same for all: shapes of a rank's
    shard, masks that it fills in.
    """
    known: dict[Hashable, Any] = {}

    @functools.wraps(propagate)
    def told(schema: Any) -> Any:
        if not any(isinstance(arg, (list, tuple)) for arg in schema.args_schema):
            return propagate(schema)
        meshes = _Meshes()
        try:
            given = schema.args_schema, *schema.kwargs_schema.items()
            question = schema.op, meshes.apart(given)
        except TypeError:
            return propagate(schema)
        if question in known:
            return _on(known[question], meshes.of)
        answer = propagate(schema)
        if answer.redistribute_schema is None and meshes.has_those_of(answer.output_spec):
            known[question] = _on(answer, meshes.named)
        return answer

    return told


class _Meshes:
    """A rank's meshes in what it asks, by a name that they have on all ranks.

    Of several with one name any will do: to torch they are equal.
    """

    def __init__(self) -> None:
        self._names: dict[int, Hashable] = {}
        self._meshes: dict[Hashable, Any] = {}

    def named(self, mesh: Any) -> Hashable:
        """Its name: the ranks that it is made of, and how."""
        if id(mesh) not in self._names:
            ranks = tuple(mesh.mesh.flatten().tolist())
            name = mesh.device_type, mesh.mesh_dim_names, mesh.shape, ranks
            self._names[id(mesh)] = name
            self._meshes[name] = mesh
        return self._names[id(mesh)]

    def of(self, name: Hashable) -> Any:
        """The rank's mesh of that name."""
        return self._meshes[name]

    def has_those_of(self, specs: Any) -> bool:
        """Whether results are a list, or none, and on meshes that the rank has told."""
        return specs is None or (
            isinstance(specs, tuple) and all(id(spec.mesh) in self._names for spec in specs if spec)
        )

    def apart(self, value: Any) -> Hashable:
        """A value that knows names of meshes only. TypeError if it is of a kind that may differ
        from rank to rank."""
        if isinstance(value, (list, tuple)):
            return type(value), tuple(map(self.apart, value))
        if isinstance(value, _PLAIN):
            return type(value), value  # 1 and True are two things
        if not hasattr(value, "placements"):
            raise TypeError(f"{type(value).__name__} may differ from rank to rank")
        return _with_mesh(value, self.named)


def _on(answer: Any, mesh: Callable[[Any], Any]) -> Any:
    """The same answer, on other meshes."""
    specs = answer.output_spec
    if specs is not None:
        specs = tuple(None if spec is None else _with_mesh(spec, mesh) for spec in specs)
    return type(answer)(specs, needs_redistribute=answer.needs_redistribute)


def _with_mesh(spec: Any, mesh: Callable[[Any], Any]) -> Any:
    other = copy.copy(spec)
    other.mesh = mesh(spec.mesh)
    return other
