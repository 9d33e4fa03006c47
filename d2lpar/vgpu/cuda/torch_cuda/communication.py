"""Several devices: which are meant, and what needs several processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
import torch.nn.parallel

from ...patching import Patches
from ...ranks.groups.own_groups import ENV, init_process_group
from ...ranks.private.c10d import MODULES
from ...ranks.state.process_state import OwnState
from ...ranks.world_of_one import alone_in_its_world
from ...torch_backend.private import torch_devices
from ...torch_backend.tensors.tensor import VirtualTensor
from .. import lazy_init
from ..device_translation import CUDA, local_number, to_virtual
from ..refusals import refusal


def install(patches: Patches) -> None:
    """Replace what asks for devices, and what joins processes to groups."""
    _install_queries(patches)
    _install_groups(patches)


# --- which devices are meant ----------------------------------------------------------------------


def _install_queries(patches: Patches) -> None:
    patches.replace(torch.accelerator, "current_accelerator", _current_accelerator)
    patches.replace(*torch_devices.GET_ACCELERATOR, lambda check=None: torch.device(CUDA))
    patches.replace(torch.accelerator, "device_count", lazy_init.device_count)
    for name in ("current_device_index", "current_device_idx"):
        if hasattr(torch.accelerator, name):
            patches.replace(torch.accelerator, name, local_number)
    patches.replace(torch, "get_device", _get_device)
    get_stream = getattr(*torch_devices.STREAM_OF_COPIES)
    patches.replace(*torch_devices.STREAM_OF_COPIES, lambda device: get_stream(to_virtual(device)))
    patches.replace(torch.backends.cuda, "is_built", lambda: True)


def _get_device(input: torch.Tensor) -> int:
    return input.get_device()


def _current_accelerator(check_available: bool = False) -> torch.device | None:
    return None if check_available and not lazy_init.device_count() else torch.device(CUDA)


# --- processes ------------------------------------------------------------------------------------

REMEDY = (
    "all emulated devices are in one process here. Start ranks, with "
    "torch.multiprocessing.spawn, d2lpar.run_ranks or `d2lpar run --nproc-per-node N SCRIPT`; "
    "a group of this process alone is init_process_group('nccl', init_method="
    "'tcp://localhost:29500', rank=0, world_size=1)"
)


def _install_groups(patches: Patches) -> None:
    """Outside virtual ranks a process has no others to meet on emulated devices; it may be a rank
    by itself, until the block ends."""
    ddp = torch.nn.parallel.DistributedDataParallel
    patches.replace(ddp, "__init__", _init_ddp(ddp.__init__))
    if torch.distributed.is_available():
        start = _init_process_group(torch.distributed.init_process_group, patches)
        for module in MODULES:
            if hasattr(module, "init_process_group"):
                patches.replace(module, "init_process_group", start)
        patches.replace(torch.distributed, "is_nccl_available", lambda: True)


def _init_ddp(theirs: Callable) -> Callable:
    """Torch's own for a module of the host, whose gradients go over gloo."""
    refuse = refusal("torch.nn.parallel.DistributedDataParallel", REMEDY)

    def __init__(  # noqa: N807
        self: object, module: torch.nn.Module, *args: object, **kwargs: object
    ) -> None:
        emulated = any(isinstance(p, VirtualTensor) for p in module.parameters())
        (refuse if emulated else theirs)(self, module, *args, **kwargs)

    return __init__


def _init_process_group(theirs: Callable, patches: Patches) -> Callable:
    refuse = refusal("torch.distributed with NCCL", f"{REMEDY}; or use backend='gloo' on the CPU")
    signature = inspect.signature(theirs)

    def init_process_group(*args: Any, **kwargs: Any) -> object:
        given = signature.bind(*args, **kwargs).arguments
        if _size_of(given) == 1:
            _join_alone(patches, *args, **kwargs)
            return None
        wanted = str(given.get("backend") or "nccl").lower()
        return (refuse if "nccl" in wanted else theirs)(*args, **kwargs)

    return init_process_group


def _size_of(given: Mapping[str, Any]) -> int:
    """How many processes the group is to have, as `init_process_group` finds out; -1 if nothing
    says so."""
    method = given.get("init_method") or ENV
    query = parse_qs(urlsplit(method).query).get("world_size", ["-1"])[0]
    size = given.get("world_size", -1)
    if size == -1 and query != "-1":
        size = query
    if size == -1 and given.get("store") is None and method.startswith(ENV):
        size = os.environ.get("WORLD_SIZE", "-1")
    return int(size)


def _join_alone(patches: Patches, *args: Any, **kwargs: Any) -> None:
    """Let the process be the only rank of a world until the block ends, and join its group."""
    stack = ExitStack()
    states: list[OwnState] = [lazy_init.ProcessDevices()]
    stack.enter_context(alone_in_its_world(lazy_init.devices_here(), states))
    try:
        init_process_group(*args, **kwargs)
    except BaseException:
        stack.close()
        raise
    patches.at_end(stack.close)
