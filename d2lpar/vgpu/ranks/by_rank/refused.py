"""What virtual ranks do not have, refused by name, with what to do instead."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch

from ...torch_backend.private.torch_profiler import is_profiling, stop_profiling
from ..world.rank import here

RPC = "torch.distributed.rpc"  # loaded by torch where it is built with it
REMEDIES = {
    "abort": "destroy_process_group() ends groups",
    "shutdown": "destroy_process_group() ends groups",
    "reconfigure": "make another group with torch.distributed.new_group()",
    "new_window": "one-sided access is NCCL's own: send and receive instead",
    "merge_remote_group": "make the group with torch.distributed.new_group()",
    "recv_anysource": "name the source: torch.distributed.recv(tensor, src)",
    "_register_on_completion_hook": "d2lpar.record() has the times of all collectives",
}


def on_group(name: str) -> Callable[..., object]:
    """A method of a group that raises NotImplementedError."""
    remedy = REMEDIES.get(name, "use the other functions of torch.distributed")

    def refuse(self: object, *args: object, **kwargs: object) -> object:
        raise NotImplementedError(f"{name} is not available on virtual ranks: {remedy}")

    return refuse


SYMMETRIC = "torch.distributed._symmetric_memory"  # loaded by torch where it is asked for
_NOTED = "enable_symm_mem_for_group"
OF_SYMMETRIC_MEMORY = (_NOTED, "empty", "rendezvous", "get_symm_mem_workspace")


def of_symmetric_memory(theirs: Callable[..., object]) -> Callable[..., object]:
    """A function of symmetric memory, which on a virtual rank raises NotImplementedError; the one
    that only allows torch to use it says that torch will not."""

    @functools.wraps(theirs)
    def choose(*args: object, **kwargs: object) -> object:
        name = theirs.__name__
        if getattr(here, "rank", None) is None:
            return theirs(*args, **kwargs)
        if name == _NOTED:
            warnings.warn(f"{SYMMETRIC}.{name} changes nothing: {_NO_WINDOWS}", stacklevel=2)
            return None
        raise NotImplementedError(f"{SYMMETRIC}.{name} is not available: {_NO_WINDOWS}")

    return choose


_NO_WINDOWS = (
    "virtual ranks exchange by collectives and sends, and have no memory that kernels of other "
    "GPUs read (symmetric memory). Use the collectives of torch.distributed; what would overlap "
    "with products that way takes turns with them here"
)


def rpc_refused(theirs: Callable[..., object]) -> Callable[..., object]:
    """`init_rpc`, which on a virtual rank raises NotImplementedError: all else of RPC needs it."""

    @functools.wraps(theirs)
    def init_rpc(*args: object, **kwargs: object) -> object:
        if getattr(here, "rank", None) is None:
            return theirs(*args, **kwargs)
        raise NotImplementedError(
            "virtual ranks have no agents of torch.distributed.rpc: exchange tensors and objects "
            "with torch.distributed (send_object_list, all_gather_object, …), or run the program "
            "on the CPU, with torchrun alone"
        )

    return init_rpc


def second_profiler_refused(theirs: Callable) -> Callable:
    """torch.profiler measures a process, all of its ranks at once: one may start it. Inside
    `emulate_cuda` each rank has a simulated profile of its own, and none of them measures."""

    @functools.wraps(theirs)
    def prepare(profile: object) -> object:
        if getattr(here, "rank", None) is not None and is_profiling():
            raise NotImplementedError(
                "torch.profiler is running on another virtual rank, and a process has one: start "
                "it on rank 0 only, run the program inside d2lpar.emulate_cuda (or by `d2lpar "
                "run`), where each rank has its own, or use d2lpar.record()"
            )
        return theirs(profile)

    return prepare


def profiler_is_stopped(theirs: Callable) -> Callable:
    """The end of torch.profiler, which waits for devices first. A rank that another one's error
    ends does not wait: the profiler would go on in a thread that is over, and disturb the end of
    the process."""

    @functools.wraps(theirs)
    def end(*args: object, **kwargs: object) -> object:
        try:
            return theirs(*args, **kwargs)
        finally:
            if getattr(here, "rank", None) is not None:
                stop_profiling()

    return end


def send_by_gloo(name: str, tensor: torch.Tensor) -> RuntimeError:
    """What to raise for a send of a device's tensor: gloo takes its address for one of the host."""
    return RuntimeError(
        f"gloo cannot {name} tensors on {tensor.device}, only those of the host: {name} "
        "tensor.cpu(), or make the group with init_process_group('nccl') and a GPU for each rank"
    )
