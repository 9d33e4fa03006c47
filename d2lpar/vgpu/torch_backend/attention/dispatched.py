"""Scaled dot-product attention: the kernel that CUDA would choose, on virtual GPUs."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ..private import torch_attention
from .choice import CUDNN, EFFICIENT, FLASH, MATH, choose, inputs_of

_ALIGNED = 16  # numbers: rows of masks for the memory-efficient kernels
_PADDED = 8  # numbers: heads for FlashAttention


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`F.scaled_dot_product_attention`: by FlashAttention, memory-efficient, cuDNN or plain."""
    three = (query, key, value)
    _check(*three, attn_mask)
    kernel = choose(inputs_of(*three, attn_mask, dropout_p, is_causal, enable_gqa))
    _check_dropout(dropout_p, kernel)
    mask = _added(attn_mask, query.dtype)
    if kernel in (EFFICIENT, CUDNN) and mask is not None and mask.dtype != query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    if kernel == FLASH:
        return _flash(*three, dropout_p, is_causal, scale)
    if kernel == MATH:
        _check_added(query, key, mask, grouped=enable_gqa)
        return torch_attention.plain_attention(
            *three, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if kernel == EFFICIENT and mask is not None:
        mask = _aligned(mask).expand(*query.shape[:3], key.shape[2])
    keeps_sums = torch.is_grad_enabled() and any(t.requires_grad for t in three)
    fused = {
        EFFICIENT: torch_attention.efficient_attention,
        CUDNN: torch_attention.cudnn_attention,
    }[kernel]
    return fused(*three, mask, keeps_sums, dropout_p, is_causal, scale=scale)[0]


def fused_choice(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """`aten::_fused_sdp_choice`: the number of the kernel that would be chosen."""
    return choose(inputs_of(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa))


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """By FlashAttention: heads are made a multiple of 8 wide."""
    size = query.shape[-1]
    if size % _PADDED:
        query, key, value = (F.pad(t, (0, -size % _PADDED)) for t in (query, key, value))
    scale = size**-0.5 if scale is None else scale
    out = torch_attention.flash_attention(query, key, value, dropout, causal, scale=scale)[0]
    return out[..., :size] if size % _PADDED else out


def _added(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of booleans as one that is added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    nothing = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, nothing, torch.full_like(nothing, -torch.inf))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """The same mask with rows that begin at multiples of 16 numbers."""
    keys = mask.shape[-1]
    return F.pad(mask, (0, -keys % _ALIGNED))[..., :keys] if keys % _ALIGNED else mask


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> None:
    """RuntimeError for arguments that no kernel takes, in torch's words."""
    three = (query, key, value)
    if len({t.device for t in three}) > 1:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    masks = (torch.bool, torch.float32, query.dtype)
    if (
        len({t.dtype for t in three}) > 1
        or min(t.dim() for t in three) < 2
        or (mask is not None and mask.dtype not in masks)
    ):
        asked = None if mask is None else _on_host(mask)
        F.scaled_dot_product_attention(_on_host(query), _on_host(key), _on_host(value), asked)


def _check_added(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, *, grouped: bool
) -> None:
    """RuntimeError, torch's own, for a mask that is no part of the scores.

    Plain attention adds it to them in place, but not to tensors of a subclass, as those of virtual
    GPUs are: there a mask of more samples would make scores, and results, of more samples.
    """
    others = query if grouped else key
    try:
        batch = torch.broadcast_shapes(query.shape[:-2], others.shape[:-2])
        scores = torch.Size((*batch, query.shape[-2], key.shape[-2]))
        both = torch.broadcast_shapes(scores, () if mask is None else mask.shape)
    except RuntimeError:  # which the product, or the sum, says itself
        return
    if both != scores:
        raise RuntimeError(
            f"output with shape {[*scores]} doesn't match the broadcast shape {[*both]}"
        )


def _check_dropout(share: float, kernel: int) -> None:
    """RuntimeError for what is no share, in torch's words; FlashAttention takes no 1, either.

    That is what plain attention on CUDA does with all of them, and FlashAttention with too large
    ones; of the rest fused kernels make numbers that mean nothing, which helps nobody.
    """
    if kernel == FLASH and not share < 1:
        raise RuntimeError(
            f"Expected p_dropout < 1.f to be true, but got false: dropout_p is {share}, and "
            "FlashAttention drops less than all"
        )
    if not 0 <= share <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {share}")


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """One number of as many dimensions and of the type: what torch looks at first."""
    return torch.zeros((1,) * tensor.dim(), dtype=tensor.dtype, device="cpu")
