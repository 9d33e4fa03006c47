"""BERT (Devlin et al. 2018) operation by operation, as it was written before fused attention."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

WORDS = 30_522
POSITIONS = 512


class EncoderLayer(nn.Module):
    """Attention and a two-layer perceptron, each added to its input and normalised after that."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out, self.norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.last_norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        x = self.norm(x + F.dropout(self.out(self.attention(x)), 0.1, self.training))
        y = self.down(F.gelu(self.up(x)))
        return self.last_norm(x + F.dropout(y, 0.1, self.training))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same: softmax(Q Kᵀ / √d) V for each head."""
        batch, sequence, hidden = x.shape
        size = hidden // self.heads
        q, k, v = (
            linear(x).view(batch, sequence, self.heads, size).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(size)
        scores = scores + scores.new_zeros(batch, 1, 1, sequence)  # very low where there is no word
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        return (weights @ v).transpose(1, 2).reshape(batch, sequence, hidden)


class Bert(nn.Module):
    """From word numbers [batch, sequence] to a score for every word at every place.

    If `masked` is given, at so many places of each text alone: those whose words were masked.
    """

    def __init__(self, *, layers: int, hidden: int, heads: int, masked: int | None = None) -> None:
        super().__init__()
        self.masked = masked
        self.words, self.places = nn.Embedding(WORDS, hidden), nn.Embedding(POSITIONS, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.Sequential(*(EncoderLayer(hidden, heads) for _ in range(layers)))
        self.transform, self.last_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        self.bias = nn.Parameter(torch.empty(WORDS))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Whole numbers [batch, sequence] to scores [batch, sequence or masked, WORDS]."""
        places = torch.arange(words.shape[1], device=words.device)
        x = F.dropout(self.norm(self.words(words) + self.places(places)), 0.1, self.training)
        x = self._chosen(self.layers(x))
        x = self.last_norm(F.gelu(self.transform(x)))
        return F.linear(x, self.words.weight, self.bias)

    def _chosen(self, x: torch.Tensor) -> torch.Tensor:
        """The places whose words are predicted: which they are costs nothing else."""
        if self.masked is None:
            return x
        places = torch.arange(self.masked, device=x.device)
        return x.index_select(1, places)
