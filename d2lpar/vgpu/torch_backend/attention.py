"""Scaled dot-product attention by one fused kernel, which torch has for its own devices only."""

from __future__ import annotations

import torch

from . import torch_private

_FLASH = 1  # at::sdp::SDPBackend::flash_attention


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
    """`F.scaled_dot_product_attention`, fused where the device of the arithmetic would fuse it."""
    masked = (query, key, value, attn_mask, dropout_p, is_causal)
    options = {"scale": scale, "enable_gqa": enable_gqa}
    learns_mask = attn_mask is not None and attn_mask.requires_grad
    fits = query.dim() == 4 and not learns_mask
    if not fits or torch_private.choose_attention(*masked, **options) != _FLASH:
        return torch_private.plain_attention(*masked, **options)[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        nothing = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = nothing.masked_fill(attn_mask.logical_not(), -torch.inf)
    kernel = torch_private.flash_attention
    return kernel(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
