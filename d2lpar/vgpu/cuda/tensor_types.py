"""`torch.cuda.FloatTensor` and its like, which make tensors and test for them."""

from __future__ import annotations

from typing import Any

import torch

from ..torch_backend.tensor import VirtualTensor
from . import lazy_init
from .device_translation import CUDA

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


def tensor_type(name: str, dtype: torch.dtype) -> type:
    """The class that stands for `torch.cuda.<name>` inside the block."""
    theirs, on_cpu = getattr(torch.cuda, name), getattr(torch, name)

    class TensorType(type):
        def __call__(cls, *args: object, device: object = None) -> torch.Tensor:
            if lazy_init.emulated_count():
                place = CUDA if device is None else _cuda_device(device)
                if len(args) == 1 and isinstance(args[0], torch.Tensor):
                    return torch.empty(0, dtype=dtype, device=place).new(args[0])
                return on_cpu(*args).to(place)
            return theirs(*args, **({} if device is None else {"device": device}))

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, VirtualTensor) and instance.dtype == dtype

        def __str__(cls) -> str:
            return f"torch.cuda.{name}"

    names = {"cuda_dtype": dtype, "dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"}
    return TensorType(name, (), names)


def _cuda_device(device: object) -> Any:
    kind = torch.device(device).type  # type: ignore[call-overload]  # which says what else is wrong
    if kind != CUDA:
        raise RuntimeError(
            f"legacy constructor expects device type: {CUDA} but device type: {kind} was passed"
        )
    return device
