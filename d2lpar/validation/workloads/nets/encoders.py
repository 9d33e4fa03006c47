"""BERT and DistilBERT as transformers nests them: a host pays for each module in a module."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .bert import POSITIONS, WORDS


class Attention(nn.Module):
    """Scores and a softmax between three products and what mixes the heads' results."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[batch, words, hidden] to the same."""
        q, k, v = (self._in_heads(linear(x)) for linear in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size) + mask
        weights = self.dropout(F.softmax(scores, dim=-1))
        y = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
        return y.view(x.shape)

    def _in_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, self.size).permute(0, 2, 1, 3)


class Added(nn.Module):
    """A product whose result is dropped in part, added to an input, and normalised."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(inputs, hidden), nn.Dropout(0.1)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """[batch, words, inputs] and [batch, words, hidden] to the latter's shape."""
        return self.norm(self.dropout(self.dense(y)) + x)


class SelfAttention(nn.Module):
    """Attention, added to its input."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.inner, self.added = Attention(hidden, heads), Added(hidden, hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[batch, words, hidden] to the same."""
        return self.added(self.inner(x, mask), x)


class Widened(nn.Module):
    """The perceptron's first layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.dense, self.activation = nn.Linear(hidden, 4 * hidden), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, words, hidden] to [batch, words, 4 × hidden]."""
        return self.activation(self.dense(x))


class Layer(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention, self.widened = SelfAttention(hidden, heads), Widened(hidden)
        self.added = Added(4 * hidden, hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[batch, words, hidden] to the same."""
        y = self.attention(x, mask)
        return self.added(self.widened(y), y)


class Embeddings(nn.Module):
    """Words, their places and, in BERT, which of two texts they are of."""

    def __init__(self, hidden: int, *, kinds: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, hidden), nn.Embedding(POSITIONS, hidden)
        self.kinds = nn.Embedding(2, hidden) if kinds else None
        self.norm, self.dropout = nn.LayerNorm(hidden), nn.Dropout(0.1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Whole numbers [batch, words] to [batch, words, hidden]."""
        x = self.words(words)
        if self.kinds is not None:
            x = x + self.kinds(torch.zeros_like(words))
        places = torch.arange(words.shape[1], device=words.device)[None]
        return self.dropout(self.norm(x + self.places(places)))


class Encoder(nn.Module):
    """An encoder with a small head: two scores for a text or for each of its words.

    `pooled` is "first" (of the first word, as BERT classifies), "words" or "mean" (no head).
    """

    def __init__(
        self, *, layers: int, hidden: int, heads: int, pooled: str, distilled: bool = False
    ) -> None:
        super().__init__()
        self.embeddings, self.pooled = Embeddings(hidden, kinds=not distilled), pooled
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.pooler = nn.Linear(hidden, hidden) if pooled == "first" else None
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(hidden, 2) if pooled != "mean" else nn.Identity()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Whole numbers [batch, words] to [batch, 1 or words, 2 or hidden]."""
        there = torch.ones(words.shape, device=words.device)[:, None, None, :]
        x = self.embeddings(words)
        mask = (1.0 - there.to(x.dtype)) * -10_000.0
        for layer in self.layers:
            x = layer(x, mask)
        if self.pooler is not None:
            x = torch.tanh(self.pooler(x[:, :1]))
        return x.mean(1, keepdim=True) if self.pooled == "mean" else self.head(self.dropout(x))
