"""What the fused kernels of attention compute, for devices that torch has none for.

Each function stands for an operation of the same arguments: see `KERNELS`. Shapes: queries [batch,
heads, queries, size], keys and values [batch, key_heads, keys, size]. On tensors without values (of
`meta`) they make what would hold the results. Scores are computed in fp32, as on CUDA. In the
place of Philox's seed stands one that dropout has drawn; by it the backward pass drops the same
scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from ..private import torch_attention

Tensors = tuple[torch.Tensor | None, ...]


class _Settings(NamedTuple):
    """How scores become probabilities."""

    scale: float
    causal: bool
    dropout: float
    mask: torch.Tensor | None = None


# --- one function for each operation --------------------------------------------------------------


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[object, ...]:
    """`aten::_scaled_dot_product_flash_attention`."""
    settings = _Settings(_scale(query, scale), is_causal, dropout_p)
    sums = _float32(query, *query.shape[:3])
    seed, offset = _seed(query), _seed(query)
    found = _forward(query, key, value, settings, sums, seed)
    out = _laid_out(found, _like(query, value))
    debug = query.new_empty(0)
    return out, sums, None, None, query.shape[2], key.shape[2], seed, offset, debug


def cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[object, ...]:
    """`aten::_scaled_dot_product_cudnn_attention`."""
    settings = _Settings(_scale(query, scale), is_causal, dropout_p, attn_bias)
    sums = _float32(query, *query.shape[:3], 1)
    seed, offset = _seed(query), _seed(query)
    found = _forward(query, key, value, settings, sums.squeeze(-1), seed)
    out = _laid_out(found, _like(query, value))
    return out, sums, None, None, query.shape[2], key.shape[2], seed, offset, None


def efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[object, ...]:
    """`aten::_scaled_dot_product_efficient_attention`: sums are kept if they will be needed."""
    settings = _Settings(_scale(query, scale), is_causal, dropout_p, attn_bias)
    batch, heads, queries, _ = query.shape
    rows = math.ceil(queries / 32) * 32 if compute_log_sumexp else 0
    sums = _float32(query, batch, heads, rows)
    seed, offset = _seed(query), _seed(query)
    of_rows = sums[..., :queries] if compute_log_sumexp else None
    found = _forward(query, key, value, settings, of_rows, seed)
    out = _laid_out(found, _interleaved(query, (batch, heads, queries, value.shape[-1])))
    return out, sums, seed, offset


def flash_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> Tensors:
    """`aten::_scaled_dot_product_flash_attention_backward`."""
    settings = _Settings(_scale(query, scale), is_causal, dropout_p)
    saved = (query, key, value, out, logsumexp, philox_seed)
    found = _backward(grad_out, saved, settings)
    like = map(torch.empty_like, (query, key, value))
    return tuple(map(_laid_out, found, like))


def cudnn_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    attn_bias: torch.Tensor | None,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Tensors:
    """`aten::_scaled_dot_product_cudnn_attention_backward`."""
    settings = _Settings(_scale(query, scale), is_causal, dropout_p, attn_bias)
    saved = (query, key, value, out, logsumexp.squeeze(-1), philox_seed)
    found = _backward(grad_out, saved, settings)
    like = map(torch.empty_like, (query, key, value))
    return tuple(map(_laid_out, found, like))


def efficient_backward(
    grad_out_: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Tensors:
    """`aten::_scaled_dot_product_efficient_attention_backward`: of the mask too, if it learns."""
    if grad_out_ is None:
        return None, None, None, None
    settings = _Settings(_scale(query, scale), is_causal, dropout_p, attn_bias)
    saved = (query, key, value, out, logsumexp[..., : query.shape[2]], philox_seed)
    grad_mask = None
    if attn_bias is not None and grad_input_mask[3]:
        keys = attn_bias.shape[-1]
        padded = (*attn_bias.shape[:-1], math.ceil(keys / 16) * 16)
        grad_mask = attn_bias.new_empty(padded)[..., :keys]
    found = _backward(grad_out_, saved, settings, grad_mask)
    interleaved = (_interleaved(t, t.shape) for t in (query, key, value))
    return (*map(_laid_out, found, interleaved), grad_mask)


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    torch_attention.flash_attention: flash,
    torch_attention.flash_attention_backward: flash_backward,
    torch_attention.efficient_attention: efficient,
    torch_attention.efficient_attention_backward: efficient_backward,
    torch_attention.cudnn_attention: cudnn,
    torch_attention.cudnn_attention_backward: cudnn_backward,
}


# --- memory for results, laid out as on CUDA ------------------------------------------------------


def _like(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A result whose dimensions lie in memory in the order of those of the queries."""
    if query.shape[-1] == value.shape[-1]:
        return torch.empty_like(query)
    shape = (*query.shape[:-1], value.shape[-1])
    steps = query.stride()
    order = sorted(range(4), key=lambda dim: -steps[dim] or -math.inf)
    return torch.empty_permuted(shape, order, dtype=query.dtype, device=query.device)


def _interleaved(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The heads of a position side by side: [batch, sequence, heads, size] in memory."""
    return torch.empty_permuted(shape, (0, 2, 1, 3), dtype=like.dtype, device=like.device)


def _float32(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _seed(like: torch.Tensor) -> torch.Tensor:
    """Room for the seed of a generator."""
    return like.new_zeros((), dtype=torch.int64)


def _laid_out(found: torch.Tensor | None, memory: torch.Tensor) -> torch.Tensor:
    """`memory` with what was found in it; no copy where that lies so already. None is nothing.

    Memory is reserved when all is computed: so results lie where the processor's cache has just
    been used, as when it computes by itself.
    """
    if found is None:
        return memory
    is_all = found.untyped_storage().nbytes() == memory.nbytes  # nothing is padded
    is_alike = (found.dtype, found.shape) == (memory.dtype, memory.shape)
    if is_all and is_alike and found.stride() == memory.stride():
        return found
    return memory.copy_(found)


# --- arithmetic -----------------------------------------------------------------------------------


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    settings: _Settings,
    sums: torch.Tensor | None,
    seed: torch.Tensor,
) -> torch.Tensor | None:
    """The result (None on `meta`); write the logarithms of the rows' sums, and the seed."""
    if query.is_meta:
        return None
    q, k, v = (_wide(t, query.shape[1]) for t in (query, key, value))
    if _is_plain(q, v, settings):
        found, rows = torch_attention.attention_of_cpu(
            q, k, v, 0.0, settings.causal, attn_mask=_wide_mask(settings), scale=settings.scale
        )
    else:
        scores = _scores(q, k, settings)
        rows = scores.logsumexp(-1)
        if settings.dropout:
            seed.random_()
        found = (_probabilities(scores) * _kept(scores, settings, seed)) @ v
    if sums is not None:
        sums.copy_(rows)
    return found


def _backward(
    grad_out: torch.Tensor,
    saved: tuple[torch.Tensor, ...],
    settings: _Settings,
    grad_mask: torch.Tensor | None = None,
) -> Tensors:
    """The gradients of queries, keys and values (None on `meta`); write that of the mask."""
    query, key, value, out, rows, seed = saved
    if query.is_meta:
        return None, None, None
    q, k, v, o, grad = (_wide(t, query.shape[1]) for t in (query, key, value, out, grad_out))
    if grad_mask is None and _is_plain(q, v, settings):
        saved = (q, k, v, o, rows)
        found = torch_attention.attention_of_cpu_backward(
            *(grad, *saved, 0.0, settings.causal),
            attn_mask=_wide_mask(settings),
            scale=settings.scale,
        )
    else:
        *found, of_scores = _by_scores(grad, (q, k, v), settings, seed)
        if grad_mask is not None:
            grad_mask.copy_(of_scores)
    heads = (query.shape[1], key.shape[1], value.shape[1])
    return tuple(map(_of_groups, found, heads))


def _by_scores(
    grad: torch.Tensor,
    tensors: tuple[torch.Tensor, ...],
    settings: _Settings,
    seed: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients of queries, keys, values and scores."""
    q, k, v = tensors
    scores = _scores(q, k, settings)
    probabilities, kept = _probabilities(scores), _kept(scores, settings, seed)
    grad_v = (probabilities * kept).transpose(-2, -1) @ grad
    weighted = (grad @ v.transpose(-2, -1)) * kept * probabilities
    of_scores = weighted - probabilities * weighted.sum(-1, keepdim=True)
    each, other = _factors(settings.scale)
    grad_q = of_scores @ (k * other) * each
    grad_k = of_scores.transpose(-2, -1) @ (q * each) * other
    return grad_q, grad_k, grad_v, of_scores


def _is_plain(q: torch.Tensor, v: torch.Tensor, settings: _Settings) -> bool:
    """Whether torch's own fused kernel for the processor does it."""
    in_memory = q.device.type == "cpu" and q.shape[-1] == v.shape[-1]
    return in_memory and not settings.dropout


def _wide_mask(settings: _Settings) -> torch.Tensor | None:
    return None if settings.mask is None else settings.mask.float()


def _wide(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """In fp32, keys and values once for each head of the queries.

    Where `refusals` tries small sizes instead of large ones, these are no multiple of the others,
    and torch's kernel does not look.
    """
    groups = -(-heads // tensor.shape[1])
    wide = tensor.float() if groups == 1 else tensor.float().repeat_interleave(groups, 1)
    return wide[:, :heads]


def _of_groups(gradient: torch.Tensor, heads: int) -> torch.Tensor:
    """Summed over the heads that share keys and values."""
    return gradient.unflatten(1, (heads, -1)).sum(2) if gradient.shape[1] != heads else gradient


def _scores(q: torch.Tensor, k: torch.Tensor, settings: _Settings) -> torch.Tensor:
    each, other = _factors(settings.scale)
    scores = (q * each) @ (k * other).transpose(-2, -1)
    if settings.mask is not None:
        scores = scores + settings.mask
    if settings.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _factors(scale: float) -> tuple[float, float]:
    """Of queries and of keys: torch scales both, so that no product overflows."""
    root = math.sqrt(abs(scale))
    return math.copysign(root, scale), root


def _probabilities(scores: torch.Tensor) -> torch.Tensor:
    """Zero throughout a row that is masked throughout."""
    return scores.softmax(-1).masked_fill(scores.amax(-1, keepdim=True) == -torch.inf, 0.0)


def _kept(scores: torch.Tensor, settings: _Settings, seed: torch.Tensor) -> torch.Tensor | float:
    """What dropout multiplies each probability by, drawn as torch draws it on the processor."""
    if not settings.dropout:
        return 1.0
    generator = torch.Generator().manual_seed(int(seed))
    kept = torch.empty(scores.shape).bernoulli_(1 - settings.dropout, generator=generator)
    return kept.div_(1 - settings.dropout).to(scores.device)
