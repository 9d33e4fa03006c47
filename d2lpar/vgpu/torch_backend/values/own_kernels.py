"""Operations whose values are computed here, as torch has none for the CPU, or not for all data
types, or slow ones: by operation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..private import torch_operators
from . import (
    attention_values,
    batch_norm_values,
    half_products,
    mixed_batch_norm,
    recurrent_values,
    rms_norm_values,
)


def _sparse_product(
    added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """`torch.sparse.mm`, whose C++ takes a virtual matrix for a dense one: so it transposes all,
    that the sparse one comes first."""
    if a.layout is not torch.strided and b.layout is not torch.strided:
        return torch.sparse.mm(b.t(), a.t()).t()
    if b.layout is torch.strided:
        return torch_operators.sparse_product.default(added, a, b, beta=beta, alpha=alpha)
    whole = added.t().expand(b.shape[1], a.shape[0])
    return torch.addmm(whole, b.t(), a.t(), beta=beta, alpha=alpha).t()


def _histogram(
    values: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0
) -> torch.Tensor:
    """Of integers, too, as CUDA has it."""
    is_integer = not (
        values.is_floating_point() or values.is_complex() or values.dtype == torch.bool
    )
    counted = values.double() if is_integer else values
    return torch.histc(counted, bins, min, max).to(values.dtype)


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    **attention_values.KERNELS,
    **batch_norm_values.KERNELS,
    **half_products.KERNELS,
    **mixed_batch_norm.KERNELS,
    **recurrent_values.KERNELS,
    **rms_norm_values.KERNELS,
    torch.ops.aten.histc.default: _histogram,
    torch_operators.sparse_product.default: _sparse_product,
}
