"""Several devices: `torch.cuda.comm`, torch.nn.parallel, and what needs several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.cuda.comm
import torch.nn.parallel

from ..torch_backend import torch_private
from ..torch_backend.tensor import VirtualTensor
from . import lazy_init
from .device_translation import CUDA, inward, local_number
from .patches import Patches
from .refusals import refusal

HOST = -1


def install(patches: Patches) -> None:
    """Replace what moves tensors between devices, and what joins processes to groups."""
    _install_primitives(patches)
    _install_queries(patches)
    _refuse_lonely_groups(patches)


# --- the primitives -------------------------------------------------------------------------------


def _install_primitives(patches: Patches) -> None:
    comm = torch.nn.parallel.comm
    table = {
        "broadcast": _or_into(_to_devices(comm.broadcast), _broadcast_into),
        "broadcast_coalesced": _to_devices(comm.broadcast_coalesced),
        "scatter": _or_into(_to_devices(comm.scatter), _scatter_into),
        "gather": _or_into(_gather(comm.gather), _gather_into),
        "reduce_add": _reduce(comm.reduce_add),
        "reduce_add_coalesced": _reduce(comm.reduce_add_coalesced),
    }
    for module in (comm, torch.cuda.comm):
        for name, ours in table.items():
            patches.replace(module, name, ours)


def _to_devices(theirs: Callable) -> Callable:
    def send(
        tensors: object, devices: Sequence[object] | None = None, *args: object, **kwargs: object
    ) -> object:
        chosen = range(lazy_init.device_count()) if devices is None else map(local_number, devices)
        return theirs(tensors, list(chosen), *args, **kwargs)

    return send


def _gather(theirs: Callable) -> Callable:
    def gather(tensors: object, dim: int = 0, destination: object = None) -> object:
        return theirs(tensors, dim, _destination(destination))

    return gather


def _reduce(theirs: Callable) -> Callable:
    def reduce(
        inputs: object, destination: object = None, *args: object, **kwargs: object
    ) -> object:
        return theirs(inputs, local_number(destination), *args, **kwargs)

    return reduce


def _destination(device: object) -> int:
    if device == HOST or (isinstance(device, (str, torch.device)) and str(device) == "cpu"):
        return HOST
    return local_number(device)


def _or_into(theirs: Callable, into: Callable) -> Callable:
    """With `out`, what `into` does: there, devices must not be given, as in torch."""

    def call(*args: object, out: object = None, **kwargs: object) -> object:
        return theirs(*args, **kwargs) if out is None else into(*args, out=out, **kwargs)

    return call


def _exclude(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise RuntimeError(
                f"'{name}' and 'out' cannot both be specified: tensors in 'out' say where results "
                f"go, but got {name}={value}"
            )


def _broadcast_into(
    tensor: torch.Tensor, devices: object = None, *, out: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    _exclude(devices=devices)
    return tuple(target.copy_(tensor) for target in out)


def _scatter_into(
    tensor: torch.Tensor,
    devices: object = None,
    chunk_sizes: object = None,
    dim: int = 0,
    streams: object = None,
    *,
    out: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    _exclude(devices=devices, chunk_sizes=chunk_sizes)
    pieces = tensor.split([target.size(dim) for target in out], dim)
    return tuple(target.copy_(piece) for target, piece in zip(out, pieces, strict=True))


def _gather_into(
    tensors: Sequence[torch.Tensor],
    dim: int = 0,
    destination: object = None,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    _exclude(destination=destination)
    for target, tensor in zip(out.split([t.size(dim) for t in tensors], dim), tensors, strict=True):
        target.copy_(tensor)
    return out


# --- which devices are meant ----------------------------------------------------------------------


def _install_queries(patches: Patches) -> None:
    patches.replace(torch.accelerator, "current_accelerator", _current_accelerator)
    patches.replace(*torch_private.GET_ACCELERATOR, lambda check=None: torch.device(CUDA))
    patches.replace(torch.accelerator, "device_count", lazy_init.device_count)
    for module, name in torch_private.DEVICE_TYPE_QUERIES:
        patches.replace(module, name, lambda: CUDA)
    get_stream = getattr(*torch_private.STREAM_OF_COPIES)
    patches.replace(*torch_private.STREAM_OF_COPIES, lambda device: get_stream(inward(device)))
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
