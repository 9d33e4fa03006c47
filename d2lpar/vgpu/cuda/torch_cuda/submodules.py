"""What meets CUDA in a module of its own: NCCL, cuDNN, the compiler."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch.backends.cuda
import torch.backends.cudnn
import torch.cuda.nccl
import torch.cuda.profiler
import torch.utils.dlpack

from ....timeline.printing import say
from ...patching import Patches
from ...torch_backend.comm.nccl import build_version
from ...torch_backend.private import torch_devices
from ..refusals import refusal

REFUSED = (
    (torch.cuda.profiler, ("init",), "use `with d2lpar.record() as timeline:`"),
    (torch.utils.dlpack, ("to_dlpack",), "copy the tensor to the CPU first, with .cpu()"),
    (
        torch.cuda.nccl,
        ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"),
        "use torch.distributed, or the functions of torch.nn.parallel.comm",
    ),
)
NO_PLANS = refusal(
    "torch.backends.cuda.cufft_plan_cache", "transforms keep no plans here, so leave it out"
)

COMPILED = (
    "torch.compile: on emulated devices nothing is compiled. Values are those of the operations "
    "one by one; the time is that of a model of Inductor's code, with pointwise work fused"
)


def install(patches: Patches) -> None:
    """Replace or refuse what these modules do."""
    for module, names, remedy in REFUSED:
        for name in names:
            if hasattr(module, name):
                patches.replace(module, name, refusal(f"{module.__name__}.{name}", remedy))
    patches.set(torch.backends.cuda.cuFFTPlanCacheManager, "__getitem__", NO_PLANS)
    patches.replace(torch.cuda.nccl, "version", build_version(torch.cuda.nccl.version))
    patches.replace(torch.backends.cudnn, "version", torch_devices.cudnn_version)
    patches.replace(torch.backends.cudnn, "is_acceptable", _is_acceptable)
    # Weights of recurrent networks stay where they are: nothing here asks for one piece of memory.
    patches.replace(*torch_devices.FLATTENS_WEIGHTS, lambda: False)
    patches.replace(torch, "compile", _said_once(torch.compile))


def _said_once(theirs: Callable) -> Callable:
    """Say what becomes of `torch.compile`, the first time that a block uses it."""
    said: list[str] = []

    @functools.wraps(theirs)
    def compile(*args: object, **options: object) -> object:
        if not said:
            said.append(COMPILED)
            say(COMPILED, stream=sys.stderr)
        return theirs(*args, **options)

    return compile


def _is_acceptable(tensor: torch.Tensor) -> bool:
    """Whether cuDNN takes the tensor, in a build of torch that has it."""
    known = tensor.is_cuda and tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    return known and torch.backends.cudnn.enabled and torch.backends.cudnn.is_available()
