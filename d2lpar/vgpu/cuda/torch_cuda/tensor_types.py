"""Tensors by the names of their types: `torch.cuda.FloatTensor(2)`, `torch.FloatTensor(2)`, and
`torch.Tensor(2)`.

The last is on the CPU, unless `torch.set_default_tensor_type` says that `torch.Tensor` is a type of
CUDA; a default device does not move it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...patching import Patches
from ...torch_backend.patches.lists import of_lists
from ...torch_backend.private import torch_tensors
from ...torch_backend.tensors.tensor import VirtualTensor
from .. import lazy_init
from ..device_translation import CUDA
from ..tensors.methods import cuda_dtype, named

TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def install(patches: Patches) -> None:
    """Replace those of the CPU, which torch reads lists for in C++, and what chooses the default
    one."""
    types = {f"torch.{name}": getattr(torch, name) for name in TENSOR_TYPES}
    for name, theirs in zip(TENSOR_TYPES, types.values(), strict=True):
        patches.replace_class(torch, name, of_lists(theirs))
    choose = _set_default_tensor_type(torch.set_default_tensor_type, types)
    patches.replace(torch, "set_default_tensor_type", choose)
    patches.set(torch.Tensor, "__new__", staticmethod(_new))
    patches.set(_TensorClass, "on_cuda", False)


def tensor_type(name: str, dtype: torch.dtype) -> type:
    """The class that stands for `torch.cuda.<name>` inside the block."""
    theirs, on_cpu = getattr(torch.cuda, name), getattr(torch, name)

    class TensorType(type):
        def __call__(cls, *args: object, **options: Any) -> torch.Tensor:
            if not lazy_init.emulated_count():
                return theirs(*args, **options)
            device = options.pop("device", CUDA)
            if isinstance((*args, None)[0], torch.Tensor):
                return torch.empty(0, dtype=dtype, device=device).new(*args)
            return on_cpu(*args, **options).to(device)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, VirtualTensor) and instance.dtype == dtype

        def __str__(cls) -> str:
            return f"torch.cuda.{name}"

    names = {"cuda_dtype": dtype, "dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"}
    return TensorType(name, (), names)


class _TensorClass:
    """What `torch.Tensor(2)` makes: a tensor of the default type."""

    on_cuda = False  # of the block that is open: there is one at a time


_of_torch = of_lists(torch_tensors.TensorBase.__new__, at=1)


def _new(*args: object, **kwargs: object) -> object:
    """`torch.Tensor.__new__`: one function for all blocks, and with any arguments, as Dynamo notes
    it when it is imported."""
    of_cuda = args[0] is torch.Tensor and _TensorClass.on_cuda
    if of_cuda and not isinstance((*args, None)[1], torch.Tensor):
        return getattr(torch.cuda, _default_name())(*args[1:], **kwargs)
    return _of_torch(*args, **kwargs)


def _default_name() -> str:
    dtype = torch.get_default_dtype()
    return next(name for name, of_type in TENSOR_TYPES.items() if of_type == dtype)


def _set_default_tensor_type(theirs: Callable, types: dict[str, type]) -> Callable:
    def set_default_tensor_type(t: object) -> None:
        found = cuda_dtype(t)
        if found is None:
            torch.set_default_device(None)
            theirs(types.get(str(named(t)), t))
        else:
            torch.set_default_dtype(found)
            torch.set_default_device(CUDA)
        _TensorClass.on_cuda = found is not None

    return set_default_tensor_type
