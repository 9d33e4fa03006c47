"""Which tensors hold the memory of a device: looked up when it is full, so that it costs nothing
before. Found among the objects that Python's garbage collector knows."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch

from ...timeline.formatting import bytes_text
from ..races.call_sites import UNKNOWN, CallSite, call_site_of
from ..races.tracked import TrackedMemory

SHOWN = 5

TensorGroup = tuple[str, tuple[int, ...] | None, torch.dtype | None]


def describe(memory: object, allocations: Sequence[TrackedMemory]) -> str:
    """A line for each of the largest groups of tensors that are alike, "" if there are none."""
    groups: dict[TensorGroup, list[TrackedMemory]] = defaultdict(list)
    owners = _owners(memory)
    for allocation in allocations:
        groups[_group(owners.get(id(allocation)))].append(allocation)
    ranked = sorted(groups.items(), key=lambda item: -_total(item[1]))
    lines = [_line(group, held) for group, held in ranked[:SHOWN]]
    rest = [allocation for _, held in ranked[SHOWN:] for allocation in held]
    if rest:
        lines.append(f"  {bytes_text(_total(rest))} in {len(rest)} others")
    return "\n".join(lines)


def _owners(memory: object) -> dict[int, tuple[str, torch.Tensor]]:
    """The role and the largest tensor of each allocation, by its id."""
    owners: dict[int, tuple[str, torch.Tensor]] = {}
    gradients: set[int] = set()
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor):
            continue
        allocation = thing.__dict__.get("vgpu_allocation")
        if allocation is None or allocation.memory is not memory:
            continue
        parameter = thing.__dict__.get("_is_param", False)
        if parameter and thing.grad is not None and hasattr(thing.grad, "vgpu_allocation"):
            gradients.add(id(thing.grad.vgpu_allocation))
        known = owners.get(id(allocation))
        if known is None or parameter or (thing.numel() > known[1].numel() and known[0] != "param"):
            owners[id(allocation)] = ("param" if parameter else "", thing)
    for key in gradients & owners.keys():
        owners[key] = ("grad", owners[key][1])
    return owners


def _group(owner: tuple[str, torch.Tensor] | None) -> TensorGroup:
    if owner is None:
        return "", None, None
    role, tensor = owner
    return role, tuple(tensor.shape), tensor.dtype


def _total(held: list[TrackedMemory]) -> int:
    return sum(allocation.nbytes for allocation in held)


def _line(group: TensorGroup, held: list[TrackedMemory]) -> str:
    role, shape, dtype = group
    noun = {"param": "parameter", "grad": "gradient", "": "tensor"}[role]
    what = f"{len(held)} {noun}{'s' if len(held) > 1 else ''}"
    if dtype is not None:
        size = " × ".join(map(str, shape)) if shape else "one value"
        what += f" of {size} {str(dtype).removeprefix('torch.')}"
    return f"  {bytes_text(_total(held))} in {what}{_made(held)}"


def _made(held: list[TrackedMemory]) -> str:
    """Where most of them were made."""
    places: Counter[CallSite] = Counter(call_site_of(allocation.made) for allocation in held)
    place, _ = places.most_common(1)[0]
    if place == UNKNOWN:
        return ""
    return f", made at {place}" + (" and elsewhere" if len(places) > 1 else "")
