"""What DDP's arguments mean: group, device, sizes of buckets, buffers; and which it cannot take."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ....machines.gradient_buckets import DEFAULT_LIMITS
from ...device_naming import device
from ...torch_backend.machine.runtime import current_runtime
from ..groups.process_group import VirtualProcessGroup
from ..private import c10d as c10d_private
from ..private.backends import refuse_own

MB = 2**20
_MADE_BY = 5  # frames: this module, DDP's `__init__`, what stands for torch's, and its choice
# torch 2.15 has it
_HAS_NEW_NAME = "forward_sync_buffers" in signature(c10d_private.TorchDDP.__init__).parameters


def warn_of_old_name(broadcast_buffers: bool | None, forward_sync_buffers: bool | None) -> None:
    """Warn, as torch does, of an argument with a new name; the line that makes the DDP is named."""
    if broadcast_buffers is None or not _HAS_NEW_NAME:
        return
    if forward_sync_buffers is None:
        text = "use forward_sync_buffers, which exchanges buffers at the start in any case"
    else:
        text = "it is ignored, as forward_sync_buffers is given, too"
    warnings.warn(
        f"`broadcast_buffers` of DDP is deprecated: {text}", FutureWarning, stacklevel=_MADE_BY
    )


def limits_bytes(mb: float | None, each_mb: Sequence[float] | None) -> tuple[float, ...]:
    """The bytes of the first bucket, the second, …; further ones have the last."""
    if each_mb:
        return tuple(int(size * MB) for size in each_mb)
    return DEFAULT_LIMITS if mb is None else (mb * MB,)


def group_of(given: dist.ProcessGroup | None, mesh: Any) -> dist.ProcessGroup:
    """The ranks that average their gradients: the group, the mesh's, or all. Raises RuntimeError
    for both, and for a mesh of several dimensions; NotImplementedError for a group of a class that
    the program has written."""
    if mesh is not None and given is not None:
        raise RuntimeError(
            "Cannot specify both process_group and device_mesh arguments: leave one of them out"
        )
    if mesh is not None and mesh.ndim != 1:
        raise RuntimeError(
            f"Only 1D device mesh is supported, but got {mesh}: take one dimension of it by its "
            'name, such as mesh["data"]'
        )
    if mesh is not None:
        return mesh.get_group(mesh_dim=0)
    group = dist.group.WORLD if given is None else given
    assert group is not None, "virtual ranks have a group of all"
    if type(group) not in (VirtualProcessGroup, dist.ProcessGroup):
        refuse_own(f"DDP's group {type(group).__name__}")
    return group


def device_of(
    module: nn.Module, trained: list[nn.Parameter], ids: list | None, output: object = None
) -> torch.device:
    """The device of the parameters. Raises for a module that DDP cannot have."""
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise RuntimeError(
            "Modules with uninitialized parameters can't be used with DistributedDataParallel: run "
            "a first batch through the lazy module"
        )
    if not trained:
        raise RuntimeError("DDP is not needed for a module none of whose parameters is trained")
    devices = list(dict.fromkeys(p.device for p in trained))
    if (len(devices) > 1 and ids) or (ids and len(ids) > 1):
        raise ValueError(
            f"device_ids can only be None or contain a single element. It is {ids}, and parameters "
            f"are on {', '.join(map(str, devices))}: a module on several devices needs "
            "device_ids=None, and others are of one device"
        )
    if len({device.type for device in devices}) > 1:
        raise ValueError(
            "DistributedDataParallel's input module must be on the same type of devices, but its "
            f"parameters are on {', '.join(map(str, devices))}: move them with .to(device)"
        )
    if len(devices) > 1 and output is not None:
        raise ValueError(
            "DistributedDataParallel device_ids and output_device arguments only work with "
            "single-device/multiple-device GPU modules or CPU modules: output_device is "
            f"{output}, and parameters are on {', '.join(map(str, devices))}. Leave it out"
        )
    found = devices[0]
    if ids and number_of(ids[0], found) != found.index:
        remedy = (
            "move the module there first"
            if found.type == "cpu"
            else f"leave device_ids out, or pass [{found.index}]"
        )
        raise ValueError(f"device_ids is {ids}, but the parameters are on {found}: {remedy}")
    return found


def number_of(given: object, otherwise: torch.device) -> int | None:
    """The number of a device given by number, name or object (None: that of another).

    Whatever has no number is the current device, as torch takes it: "cuda", and also a list.
    """
    if isinstance(given, int):
        return given
    if given is None:
        return otherwise.index
    index = torch.device(given).index if isinstance(given, (str, torch.device)) else None
    return device(current_runtime().current_device).index if index is None else index
