"""Values of the backward pass of RMS norm's one kernel, which torch has for CUDA only.

y = x r w, where r is one over the root of the mean of the squares of a row (Zhang and Sennrich,
"Root Mean Square Layer Normalization", 2019).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..private import torch_operators


def backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of the input, and of the weight [normalized_shape]; None for what is not asked.

    `rstd` is r, of every row. Sums are in float32 at least, as on CUDA.
    """
    inner = tuple(range(-len(normalized_shape), 0))
    dtype = torch.promote_types(input.dtype, torch.float32)
    normal = input.to(dtype) * rstd.view(*input.shape[: inner[0]], *(1 for _ in inner))
    scaled = gradient.to(dtype)
    for_weight = (scaled * normal).flatten(0, inner[0] - 1) if input.dim() > len(inner) else None
    if weight is not None:
        scaled = scaled * weight
    shared = (scaled * normal).mean(inner, keepdim=True)
    of_input = (scaled - normal * shared) * rstd.view(shared.shape)
    of_weight = gradient.to(dtype) * normal if for_weight is None else for_weight.sum(0)
    return (
        of_input.to(input.dtype) if output_mask[0] else None,
        of_weight.to(input.dtype) if output_mask[1] and weight is not None else None,
    )


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    torch_operators.rms_norm_backward.default: backward,
}
