"""Batch normalisation on `meta`, where torch decomposes it in Python, which takes milliseconds.

What comes out is laid out as what torch makes of it: `KERNELS`, by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

aten = torch.ops.aten


def forward(
    x: torch.Tensor, weight: torch.Tensor | None, *others: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normalised images [batch, channels, ...], means and deviations [channels]."""
    if not _is_dense(x):
        return aten.native_batch_norm.default(x, weight, *others)
    mean, deviation = (_of_channels(x, _summed_as(x.dtype)) for _ in range(2))
    return _like(x), mean, deviation


def backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, *others: object
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of images, weights and biases, as many as are wanted."""
    wanted = others[-1]
    assert isinstance(wanted, Sequence)
    if weight is None or not all(wanted) or not _is_dense(x):
        return aten.native_batch_norm_backward.default(dy, x, weight, *others)
    return _like(x), _of_channels(x, weight.dtype), _of_channels(x, weight.dtype)


def _is_dense(x: torch.Tensor) -> bool:
    return x.is_contiguous() or (
        x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    )


def _summed_as(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _of_channels(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(x.shape[1], dtype=dtype, device=x.device)


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    aten.native_batch_norm.default: forward,
    aten.native_batch_norm_backward.default: backward,
}
