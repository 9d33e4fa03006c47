"""A layer and the head of a transformer, as one rank computes them: torch programs of shapes.

Heads and columns are split over tensor ranks, tokens over those of a context, experts over theirs;
what the ranks exchange is left out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .fp8 import LINEAR
from .share import Share

# Flash takes no fp32; there the next one is taken, as in torch.
_WITHOUT_CUDNN = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def _kernels(share: Share) -> AbstractContextManager:
    """The kernels of attention that may be chosen."""
    return sdpa_kernel(_WITHOUT_CUDNN) if share.attention == "flash" else nullcontext()


class Layer(nn.Module):
    """A rank's share of a layer; sums over ranks are left out."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        model, ranks = share.model, share.tensor
        self.share, self.size = share, model.head_size
        self.heads, self.key_heads = model.heads // ranks, model.key_heads_per_rank(ranks)
        columns = (self.heads + 2 * self.key_heads) * self.size
        self.norm, self.last_norm = _norm(share), _norm(share)
        linear = LINEAR.get(share.precision, nn.Linear)
        self.qkv = linear(model.hidden, columns, bias=model.has_qkv_bias)
        self.out = linear(model.width // ranks, model.hidden, bias=model.bias)
        normed = 2 if model.qk_norm else 0
        self.qk_norms = nn.ModuleList(RmsNorm(self.size) for _ in range(normed))
        self.feed = Perceptron(share) if model.experts is None else Routed(share)
        self.softmax = nn.Softmax(-1)
        self.softmax.compile()  # Megatron has one kernel for it, forward and backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and the perceptron: from [samples, tokens, hidden] to the same."""
        x = x + self._dropout(_scattered(self.attention(self.norm(x)), self.share))
        y = self.feed(_gathered(self.last_norm(x), self.share))
        return x + self._dropout(_scattered(y, self.share))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """That of this rank's heads, [samples, tokens, hidden]."""
        return self.out(self.core(self.qkv(_gathered(x, self.share))))

    def core(self, qkv: torch.Tensor) -> torch.Tensor:
        """What lies between the two products with weights."""
        batch, sequence = qkv.shape[:2]
        q, k, v = self.queries_keys_values(qkv)
        k, v = self._of_the_context(k), self._of_the_context(v)
        mix = self._scored if self.share.attention == "scores" else self._fused
        mixed = mix(*(part.transpose(1, 2) for part in (q, k, v)))
        return mixed.transpose(1, 2).reshape(batch, sequence, -1)

    def queries_keys_values(self, qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Each [samples, tokens, heads, size], normalised and at their positions."""
        batch, sequence = qkv.shape[:2]
        heads = (self.heads, self.key_heads, self.key_heads)
        parts = qkv.split([count * self.size for count in heads], -1)
        q, k, v = (
            part.view(batch, sequence, count, self.size)
            for part, count in zip(parts, heads, strict=True)
        )
        if self.qk_norms:
            q, k = self.qk_norms[0](q), self.qk_norms[1](k)
        if self.share.model.positions == "rotary":
            q, k = self._rotated(q), self._rotated(k)
        return q, k, v

    def _scored(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, heads, sequence, size = q.shape
        if self.key_heads < self.heads:
            k, v = (part.repeat_interleave(heads // self.key_heads, 1) for part in (k, v))
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        nothing = q.new_empty(1, 1, 1).expand(len(q), sequence, k.shape[1])
        scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=size**-0.5)
        mixed = torch.bmm(self._dropout(self.softmax(scores)), v)
        return mixed.view(batch, heads, sequence, size)

    def _fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # Its dropout costs next to nothing. Of a context the keys are halved already.
        with _kernels(self.share):
            return F.scaled_dot_product_attention(
                *(q, k, v),
                is_causal=self.share.model.causal and self.share.context == 1,
                enable_gqa=self.key_heads < self.heads,
            )

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary embeddings (Su et al. 2021) of [samples, tokens, heads, size]."""
        cosine = x.new_empty(x.shape[1], 1, x.shape[3])
        left, right = x.chunk(2, -1)
        return x * cosine + torch.cat((-right, left), -1) * cosine

    def _of_the_context(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values of all the context's ranks, [samples, keys, heads, size].

        Causal work is even if each rank has an early and a late piece of a sample (Llama 3): of
        fused attention, which leaves out what comes later, half the keys for each query.
        """
        share = self.share
        if share.context == 1:
            return x
        halved = share.attention != "scores" and share.model.causal
        keys = share.sequence * share.context // (2 if halved else 1)
        return resized(x, x.shape[0], keys, *x.shape[2:])

    def _dropout(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.share.model.dropout)


class Perceptron(nn.Module):
    """Two products with GELU between them, or three with SwiGLU (Shazeer 2020)."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        model = share.model
        inner, self.gated = model.inner // share.tensor, model.gated
        columns = inner * (2 if model.gated else 1)
        linear = LINEAR.get(share.precision, nn.Linear)
        self.up = linear(model.hidden, columns, bias=model.bias)
        self.down = linear(inner, model.hidden, bias=model.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[samples, tokens, hidden] to the same."""
        return self.down(_activated(self.up(x), gated=self.gated))


class Routed(nn.Module):
    """The experts of one rank, each with as many tokens, and the router to all (Mixtral)."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        model, experts = share.model, share.model.experts
        assert experts is not None  # or it were a `Perceptron`
        self.share, self.top_k = share, experts.top_k
        local, inner = experts.count // share.expert, model.inner // share.tensor
        columns = inner * (2 if model.gated else 1)
        self.router = nn.Linear(model.hidden, experts.count, bias=False)
        self.up = nn.Parameter(torch.empty(local, model.hidden, columns))
        self.down = nn.Parameter(torch.empty(local, inner, model.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[samples, tokens, hidden] to the same: tokens are sorted, sent, and brought back."""
        model, tokens = self.share.model, x.flatten(0, 1)
        weights, _ = self.router(tokens).softmax(-1).topk(self.top_k)
        rows = torch.empty(len(tokens) * self.top_k, dtype=torch.long, device=x.device)
        sent = resized(tokens.index_select(0, rows), len(self.up), self.share.expert_rows, -1)
        inner = _activated(sent.bmm(self.up), gated=model.gated)
        back = resized(inner.bmm(self.down), len(tokens), self.top_k, -1)
        return (back * weights.unsqueeze(-1)).sum(1).view_as(x)


class Products(nn.Module):
    """A layer's products with weights alone."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share, self.layer = share, Layer(share)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From [samples, tokens, hidden] to the sum of what comes out, of the same shape."""
        share, layer = self.share, self.layer
        x = _gathered(x, share)
        qkv = layer.qkv(x)
        mixed = layer.out(resized(qkv, *qkv.shape[:2], layer.out.in_features))
        return _scattered(self._fed(mixed), share)

    def _fed(self, x: torch.Tensor) -> torch.Tensor:
        feed, share = self.layer.feed, self.share
        if isinstance(feed, Perceptron):
            inner = feed.up(x)
            return feed.down(resized(inner, *inner.shape[:2], feed.down.in_features))
        sent = resized(x, len(feed.up), share.expert_rows, -1)
        inner = sent.bmm(feed.up)
        out = resized(inner, *inner.shape[:2], feed.down.shape[1]).bmm(feed.down)
        return resized(out, *x.shape)


class Head(nn.Module):
    """The score of every word, and the loss of the words that should have come.

    The loss is computed in fp32, as Megatron and torch's autocast do.
    """

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share
        self.norm = _norm(share)
        self.words = nn.Linear(share.model.hidden, share.words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean loss over all tokens of `x` that are scored, [samples, tokens, hidden]."""
        normed = _gathered(self.norm(x), self.share)
        if self.share.model.scored is not None:
            normed = normed[:, : self.share.model.scored]
        scores = self.words(normed).flatten(0, 1).float()
        return F.cross_entropy(scores, torch.empty(len(scores), dtype=torch.long, device=x.device))


class RmsNorm(nn.Module):
    """x / √mean(x²), scaled, in fp32 and kernel by kernel (Zhang and Sennrich 2019; Llama)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.to(x.dtype) * self.weight


def _norm(share: Share) -> nn.Module:
    model = share.model
    if model.norm == "layer":
        return nn.LayerNorm(model.hidden, bias=model.bias)
    return RmsNorm(model.hidden)


def _activated(x: torch.Tensor, *, gated: bool) -> torch.Tensor:
    if not gated:
        return F.gelu(x)
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class _Shape(Protocol):
    shape: torch.Size


class _Resized(torch.autograd.Function):
    """A tensor of another shape, which an exchange that is not simulated brought."""

    @staticmethod
    def forward(ctx: _Shape, x: torch.Tensor, *shape: int) -> torch.Tensor:
        ctx.shape = x.shape
        return x.new_empty(shape)

    @staticmethod
    def backward(ctx: _Shape, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return dy.new_empty(ctx.shape), *(None,) * dy.dim()


def resized(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """`x` with what an exchange brings or takes; -1 as the last size keeps that of `x`."""
    sizes = shape if shape[-1] > 0 else (*shape[:-1], x.shape[-1])
    return _Resized.apply(x, *sizes)


def _gathered(x: torch.Tensor, share: Share) -> torch.Tensor:
    return resized(x, len(x), share.sequence, -1) if share.sequence_parallel else x


def _scattered(x: torch.Tensor, share: Share) -> torch.Tensor:
    return resized(x, len(x), share.tokens, -1) if share.sequence_parallel else x
