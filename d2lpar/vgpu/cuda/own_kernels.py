"""Code that a program brings for CUDA itself: virtual GPUs run none, so it is refused by name, and
before anything is built.

Extensions in C++ alone are built: on virtual tensors what they call of torch is computed as ever,
and whoever asks for their memory gets torch's error, to which `remedy_for` adds what to do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch.cuda.jiterator

from ..late_imports import LateImports
from ..patching import Patches
from .refusals import refusal

REMEDY = (
    "virtual GPUs run no code of a program's own for CUDA. Write it with torch's operators, give "
    "an operator of torch.library a kernel for the CPU and none for CUDA, or run it on a real GPU"
)
_INTERPRETER = "; for its values alone, TRITON_INTERPRET=1 lets Triton compute it on the CPU"
_NO_MEMORY = "its data is not allocated yet"  # torch's words, where C++ asks for an address
_BY_TORCH = (
    *((torch.cuda, name) for name in ("_compile_kernel", "compile_kernel")),
    *((torch.cuda.jiterator, f"_create_{kind}jit_fn") for kind in ("", "multi_output_")),
)


def install(patches: Patches) -> None:
    """Refuse what compiles it or runs it, also in modules that are imported later."""
    for module, name in _BY_TORCH:
        if hasattr(module, name):
            patches.replace(module, name, refusal(f"{module.__name__}.{name}", REMEDY))
    see_to = {
        "torch.utils.cpp_extension": _see_to_extensions,
        "triton.runtime.driver": _see_to_driver,
        "triton.runtime.jit": _see_to_kernels,
    }
    late = LateImports(list(see_to), lambda module: see_to[module.__name__](patches, module))
    patches.at_end(late.end)


def remedy_for(message: str) -> str:
    """What to add to the message of an error: nothing, unless C++ has asked for virtual memory."""
    if _NO_MEMORY not in message or REMEDY in message:
        return ""
    return f"code in C++ has asked for the address of a tensor on a virtual GPU: {REMEDY}"


def _see_to_extensions(patches: Patches, module: ModuleType) -> None:
    for name in ("load", "load_inline"):
        patches.replace(module, name, _unless_for_cuda(name, getattr(module, name)))
    patches.replace(module, "CUDAExtension", refusal("CUDAExtension", REMEDY))


def _unless_for_cuda(name: str, theirs: Callable[..., object]) -> Callable[..., object]:
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def build(*args: Any, **kwargs: Any) -> object:
        given = signature.bind(*args, **kwargs).arguments
        sources = given.get("sources") or ()
        files = [sources] if isinstance(sources, str) else map(str, sources)
        of_cuda = given.get("with_cuda") or given.get("cuda_sources")
        if of_cuda or any(file.endswith((".cu", ".cuh")) for file in files):
            refusal(f"torch.utils.cpp_extension.{name} of {given['name']!r} for CUDA", REMEDY)()
        return theirs(*args, **kwargs)

    return build


def _see_to_kernels(patches: Patches, module: Any) -> None:
    def run(self: Any, *args: object, **kwargs: object) -> object:
        return refusal(f"the Triton kernel {self.__name__!r}", REMEDY + _INTERPRETER)()

    patches.replace(module.JITFunction, "run", run)


def _see_to_driver(patches: Patches, module: ModuleType) -> None:
    if hasattr(module, "_create_driver"):  # who has a GPU, has a driver
        patches.replace(module, "_create_driver", refusal("Triton's driver", REMEDY))
