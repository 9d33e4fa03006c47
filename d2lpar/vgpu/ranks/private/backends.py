"""Who exchanges the tensors of which kind of device in a group: what the name of a backend means.

NCCL takes tensors of GPUs alone, gloo those of the host, too; "cpu:gloo,cuda:nccl" is both. Without
a name torch takes what is made for the accelerator, and for the host where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.distributed as dist

from ...device_naming import naming

_HOST, _GPU = "cpu", "cuda"  # as torch's tables have them
_GLOO, _NCCL = dist.Backend.GLOO, dist.Backend.NCCL
# Those that torch has, and registers for its own tests, which exchange as NCCL and gloo do.
_OF_TORCH = {_GLOO, _NCCL, *("fake", "threaded")}
_NOT_BUILT = {"mpi", "ucc", "xccl"}  # torch has their names, and needs other libraries for them


@dataclass(frozen=True)
class GroupBackends:
    """`name` is what `get_backend` says; `by_device` has a backend for each kind of device."""

    name: str
    by_device: Mapping[str, str]

    def __str__(self) -> str:
        return ",".join(f"{kind}:{backend}" for kind, backend in self.by_device.items())

    @property
    def device_types(self) -> list[torch.device]:
        """The kinds of device whose tensors the group exchanges."""
        return [torch.device(kind) for kind in self.by_device]

    @property
    def has_gpus_by_host(self) -> bool:
        """Whether tensors of GPUs are exchanged through the hosts' memory, by gloo."""
        return self.by_device.get(naming().type) == _GLOO

    def has_nccl(self, *, of_host: bool) -> bool:
        """Whether calls go over NCCL, of the host or of GPUs; objects of the host do where it is
        all that there is."""
        by_device = self.by_device
        kind = _HOST if of_host and _HOST in by_device else naming().type
        return by_device.get(kind, by_device.get(_HOST)) != _GLOO

    def check(self, name: str, kind: str) -> None:
        """RuntimeError, as torch's, if nobody exchanges tensors of that kind of device."""
        if kind in self.by_device:
            return
        remedy = f"move them to the GPU, with .to('{naming().type}')"
        if kind == _HOST:
            remedy += ", or make the group with init_process_group('cpu:gloo,cuda:nccl')"
        else:
            remedy = "make the group with init_process_group('nccl')"
        raise RuntimeError(
            f"No backend type associated with device type {kind}: {name} got tensors on {kind}, "
            f"and the group has {self}; {remedy}"
        )


def at_the_start(*, has_gpus: bool) -> GroupBackends:
    """Those of the groups that ranks have before they ask for any: tensors of all kinds."""
    if not has_gpus:
        return named(_GLOO, has_gpus=False)
    return GroupBackends(_NCCL, {_HOST: _GLOO, naming().type: _NCCL})


def named(name: str | None, *, has_gpus: bool) -> GroupBackends:
    """What a program asks for. ValueError for a backend that there is not, and for NCCL on a rank
    without GPUs; RuntimeError, as torch's, for one that it is not built with; NotImplementedError
    for one that the program has registered."""
    if name is None or name == dist.Backend.UNDEFINED:
        alone = {naming().type: _NCCL} if has_gpus else {_HOST: _GLOO}
        return GroupBackends(dist.Backend.UNDEFINED, alone)
    name = dist.Backend(name)
    by_device = _pairs(name) if ":" in name else _kinds(name)
    if _NCCL in by_device.values() and not has_gpus:
        raise ValueError(
            "ProcessGroupNCCL is only supported with GPUs, no GPUs found! Start with as many GPUs "
            "as ranks, or use the backend 'gloo'"
        )
    return GroupBackends(name, by_device)


def refuse_own(what: str) -> NoReturn:
    """NotImplementedError for a way to exchange that a program has written itself."""
    raise NotImplementedError(
        f"{what} is the program's own: virtual ranks exchange as NCCL and gloo do. Use 'nccl' or "
        "'gloo', or try it on real ranks, with torchrun"
    )


def for_device(device: torch.device | int | None) -> str | None:
    """The backend that is made for a device; None for none."""
    if device is None:
        return None
    return _GLOO if isinstance(device, torch.device) and device.type == _HOST else _NCCL


def _kinds(backend: str) -> dict[str, str]:
    """The kinds of device that a backend takes."""
    known = dist.Backend.backend_capability
    if backend not in known:
        raise ValueError(
            f"there is no backend {backend!r}: a group has one of {', '.join(known)}, or one for "
            "each kind of device, as 'cpu:gloo,cuda:nccl'"
        )
    if backend in _NOT_BUILT:
        raise RuntimeError(
            f"Distributed package doesn't have {backend.upper()} built in: virtual ranks exchange "
            "as NCCL and gloo do. Use the backend 'nccl' for tensors of GPUs, or 'gloo'"
        )
    if backend not in _OF_TORCH:
        refuse_own(f"the backend {backend!r}")
    here = (_HOST, _GPU, naming().type)
    return {_known_here(kind): backend for kind in known[backend] if kind in here}


def _pairs(text: str) -> dict[str, str]:
    """The backend of each kind of device that "cpu:gloo,cuda:nccl" names."""
    found: dict[str, str] = {}
    for pair in text.split(","):
        kind, colon, backend = pair.partition(":")
        if not colon or ":" in backend or _known_here(kind) in found:
            raise ValueError(
                f"{text!r} names no backends: give each kind of device one, as 'cpu:gloo,cuda:nccl'"
            )
        _kinds(backend)
        found[_known_here(kind)] = backend
    return found


def _known_here(kind: str) -> str:
    return naming().type if kind == _GPU else kind
