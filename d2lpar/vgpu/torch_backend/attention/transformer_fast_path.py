"""The two operations that `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` are in eval
mode, kernel by kernel, as PyTorch has them for CUDA (transformers/cuda/attention.cu)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .choice import MATH, choose, inputs_of
from .dispatched import scaled_dot_product_attention

_OF_QUERIES, _OF_KEYS = 0, 1  # what a mask's two dimensions are: queries and keys, samples and keys


def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`aten::_native_multi_head_attention`: [batch, sequence, embed_dim], and the weights."""
    three = (query, key, value)
    q, k, v = (_split(t, num_head) for t in _projected(three, qkv_weight, qkv_bias))
    plain = need_weights or mask is not None or (embed_dim // num_head) % 8
    if plain or choose(inputs_of(q, k, v, None, 0.0, causal=False, grouped=False)) == MATH:
        mixed, weights = _unfused(q, k, v, mask, mask_type)
    else:
        mixed, weights = scaled_dot_product_attention(q, k, v), None
    out = F.linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights or weights is None:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """`aten::_transformer_encoder_layer_fwd`: [batch, sequence, embed_dim] to the same."""
    size = [embed_dim]

    def attend(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, need_weights=False, mask_type=mask_type
        )[0]

    def perceive(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = F.gelu(hidden) if use_gelu else hidden.relu_()
        return F.linear(hidden, ffn_weight_2, ffn_bias_2)

    norms = ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2))
    x = src
    for part, norm in zip((attend, perceive), norms, strict=True):
        y = part(F.layer_norm(x, size, *norm, eps) if norm_first else x)
        y += x
        x = y if norm_first else F.layer_norm(y, size, *norm, eps)
    return x


def _projected(
    three: tuple[torch.Tensor, torch.Tensor, torch.Tensor], weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values; by one product if all are made of one tensor."""
    if three[0] is three[1] is three[2]:
        return F.linear(three[0], weight, bias).chunk(3, -1)
    parts = zip(three, weight.chunk(3), bias.chunk(3), strict=True)
    return tuple(F.linear(t, w, b) for t, w, b in parts)


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _unfused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """By its scores: the result and their softmax. A mask is true (or not 0) at what it hides."""
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(_of_scores(mask.bool(), mask_type), -torch.inf)
    weights = scores.softmax(-1)
    return weights @ value, weights


def _of_scores(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """The mask with the dimensions of scores: samples, heads, queries, keys."""
    if mask_type == _OF_QUERIES:
        return mask[None, None]
    return mask[:, None, None] if mask_type == _OF_KEYS else mask
