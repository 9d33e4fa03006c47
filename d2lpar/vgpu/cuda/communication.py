"""Several devices: which are meant, and what needs several processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.parallel

from ..torch_backend import torch_private
from ..torch_backend.tensor import VirtualTensor
from . import lazy_init
from .device_translation import CUDA, to_virtual
from .patches import Patches
from .refusals import refusal


def install(patches: Patches) -> None:
    """Replace what asks for devices, and what joins processes to groups."""
    _install_queries(patches)
    _refuse_lonely_groups(patches)


# --- which devices are meant ----------------------------------------------------------------------


def _install_queries(patches: Patches) -> None:
    patches.replace(torch.accelerator, "current_accelerator", _current_accelerator)
    patches.replace(*torch_private.GET_ACCELERATOR, lambda check=None: torch.device(CUDA))
    patches.replace(torch.accelerator, "device_count", lazy_init.device_count)
    get_stream = getattr(*torch_private.STREAM_OF_COPIES)
    patches.replace(*torch_private.STREAM_OF_COPIES, lambda device: get_stream(to_virtual(device)))
    patches.replace(torch.backends.cuda, "is_built", lambda: True)
    patches.replace(torch.backends.cudnn, "is_acceptable", lambda tensor: False)


def _current_accelerator(check_available: bool = False) -> torch.device | None:
    return None if check_available and not lazy_init.device_count() else torch.device(CUDA)


# --- processes ------------------------------------------------------------------------------------


def _refuse_lonely_groups(patches: Patches) -> None:
    """Outside virtual ranks, a process has no others to meet on emulated devices."""
    remedy = (
        "all emulated devices are in one process here. Start ranks, with "
        "torch.multiprocessing.spawn, d2lpar.run_ranks or `d2lpar run --nproc-per-node N SCRIPT`"
    )
    ddp = torch.nn.parallel.DistributedDataParallel
    patches.replace(ddp, "__init__", _init_ddp(ddp.__init__, remedy))
    if torch.distributed.is_available():
        start = _init_process_group(torch.distributed.init_process_group, remedy)
        patches.replace(torch.distributed, "init_process_group", start)
        patches.replace(torch.distributed, "is_nccl_available", lambda: True)


def _init_ddp(theirs: Callable, remedy: str) -> Callable:
    """Torch's own for a module of the host, whose gradients go over gloo."""
    refuse = refusal("torch.nn.parallel.DistributedDataParallel", remedy)

    def __init__(  # noqa: N807
        self: object, module: torch.nn.Module, *args: object, **kwargs: object
    ) -> None:
        emulated = any(isinstance(p, VirtualTensor) for p in module.parameters())
        (refuse if emulated else theirs)(self, module, *args, **kwargs)

    return __init__


def _init_process_group(theirs: Callable, remedy: str) -> Callable:
    refuse = refusal("torch.distributed with NCCL", f"{remedy}; or use backend='gloo' on the CPU")

    def init_process_group(backend: object = None, *args: object, **kwargs: object) -> object:
        wanted = str(backend or "nccl").lower()
        return (refuse if "nccl" in wanted else theirs)(backend, *args, **kwargs)

    return init_process_group
