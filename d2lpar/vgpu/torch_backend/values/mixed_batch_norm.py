"""Batch normalisation whose weights and running statistics have different data types.

So it is where FSDP computes in half precision: it casts parameters, and leaves buffers as they are.
CUDA normalises such images; the CPU refuses them. Arguments are those of torch's operations.

Shapes: images [batch, channels, ...], weights and statistics [channels].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
_IN_CPP = {
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
}


def forward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    *others: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normalised images, means and deviations; what is summed up is float32."""
    if not _is_mixed(x, weight, running_mean):
        return aten.native_batch_norm.default(x, weight, bias, running_mean, running_var, *others)
    kept = [running_mean, running_var]
    statistics = [_float(each) for each in kept]
    wide = (_float(each) for each in (x, weight, bias))
    y, mean, deviation = aten.native_batch_norm.default(*wide, *statistics, *others)
    for each, new in zip(kept, statistics, strict=True):
        if each is not None and new is not None and each is not new:
            each.copy_(new)
    return y.to(x.dtype), mean, deviation


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    *others: Any,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of images, weights and biases, as many as the last argument wants.

    Raises RuntimeError where CUDA does: its kernel for images that have not their channels last
    reads the statistics in the data type of the weights.
    """
    op = aten.native_batch_norm_backward.default
    if not _is_mixed(x, weight, running_mean):
        return op(dy, x, weight, running_mean, *others)
    assert weight is not None
    assert running_mean is not None
    if others[-1][0] and not _has_channels_last(x):
        raise RuntimeError(
            f"Expected running_mean to have type {_IN_CPP[weight.dtype]} but got "
            f"{_IN_CPP[running_mean.dtype]}: let batch norm compute in the data type of its "
            "statistics, by a mixed precision of its own, or cast these"
        )
    gradients = op(
        *(
            _float(a) if isinstance(a, torch.Tensor) else a
            for a in (dy, x, weight, running_mean, *others)
        )
    )
    kinds = x.dtype, weight.dtype, weight.dtype
    return tuple(g if g is None else g.to(kind) for g, kind in zip(gradients, kinds, strict=True))


def _is_mixed(
    x: torch.Tensor, weight: torch.Tensor | None, running_mean: torch.Tensor | None
) -> bool:
    if weight is None or running_mean is None or weight.dtype == running_mean.dtype:
        return False
    return x.dtype in (torch.float16, torch.bfloat16)


def _float(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.float()


def _has_channels_last(x: torch.Tensor) -> bool:
    """Whether CUDA's kernels for such images take them: [batch, channels] is one of them."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()]):
        return True
    return x.is_contiguous() and x.stride(1) == 1


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    aten.native_batch_norm.default: forward,
    aten.native_batch_norm_backward.default: backward,
}
