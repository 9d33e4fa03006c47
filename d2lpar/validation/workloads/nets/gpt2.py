"""GPT-2 (Radford et al. 2019) as a textbook writes it from scratch, and as transformers has it.

OPT (Zhang et al. 2022) is transformers' with other words for attention and another activation.

rasbt/LLMs-from-scratch, ch04 and ch05/10_llm-training-speed, replaces what is written out by what
torch has ready, step by step: norms and activation by modules, then attention by one kernel.
karpathy/nanoGPT writes attention out, too, or takes the kernel; it drops nothing by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

POSITIONS = 1024


class WrittenNorm(nn.Module):
    """Layer norm in eight operations."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.empty(size)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same."""
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class WrittenGelu(nn.Module):
    """GELU by its approximation with a hyperbolic tangent, in eight operations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers of any shape."""
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


@dataclass(frozen=True)
class Writing:
    """How it is written; `together`: one product makes queries, keys and values, which otherwise
    have a bias if they are `biased`. Scores are masked in place ("fill") or in a copy ("copy"),
    chosen by `torch.where` ("choose"), or added to a mask and limited ("add"). `dropout` is that
    of all places, `dropped` that of attention; `with_loss` says that the network ends with it."""

    norm: Callable[[int], nn.Module] = WrittenNorm
    activation: Callable[[], nn.Module] = WrittenGelu
    flash: bool = False
    together: bool = False
    biased: bool = False
    mask: str = "fill"
    tied: bool = False
    dropout: float = 0.1
    dropped: float = 0.1
    with_loss: bool = False


SCRATCH = Writing()
MODULES = Writing(nn.LayerNorm, lambda: nn.GELU(approximate="tanh"))
FLASH = Writing(nn.LayerNorm, lambda: nn.GELU(approximate="tanh"), flash=True)
TRANSFORMERS = Writing(nn.LayerNorm, together=True, biased=True, mask="choose", tied=True)
_NANOGPT = Writing(
    *(nn.LayerNorm, lambda: nn.GELU(approximate="tanh")),
    together=True, biased=True, mask="copy", tied=True, dropout=0.0, dropped=0.0, with_loss=True,
)  # fmt: skip
NANOGPT, NANOGPT_FLASH = _NANOGPT, replace(_NANOGPT, flash=True)
OPT = Writing(nn.LayerNorm, nn.ReLU, biased=True, mask="add", tied=True, dropped=0.0)


class Attention(nn.Module):
    """Attention to earlier words."""

    later: torch.Tensor
    low: torch.Tensor

    def __init__(self, hidden: int, heads: int, writing: Writing, positions: int) -> None:
        super().__init__()
        self.heads, self.writing = heads, writing
        outputs = [3 * hidden] if writing.together else [hidden] * 3
        self.qkv = nn.ModuleList(nn.Linear(hidden, n, bias=writing.biased) for n in outputs)
        self.out, self.dropout = nn.Linear(hidden, hidden), nn.Dropout(writing.dropped)
        later = torch.empty(positions, positions, dtype=torch.bool)
        self.register_buffer("later", later, persistent=False)
        self.register_buffer("low", torch.empty(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, words, hidden] to the same."""
        batch, words, hidden = x.shape
        parts = [linear(x) for linear in self.qkv]
        if self.writing.together:
            parts = list(parts[0].split(hidden, -1))
        q, k, v = (part.view(batch, words, self.heads, -1).transpose(1, 2) for part in parts)
        if self.writing.flash:
            dropout = self.writing.dropped if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        else:
            y = self.dropout(self._weights(q, k)) @ v
        return self.out(y.transpose(1, 2).reshape(batch, words, hidden))

    def _weights(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        words, size = q.shape[2:]
        later = self.later[:words, :words]
        if self.writing.mask == "add":
            scores = (q / size**0.5) @ k.transpose(2, 3)
            return torch.softmax(torch.maximum(scores + later, self.low), -1)
        scores = q @ k.transpose(2, 3)
        if self.writing.mask == "fill":
            return torch.softmax(scores.masked_fill_(later, -torch.inf) / size**0.5, -1)
        if self.writing.mask == "copy":
            return torch.softmax((scores / size**0.5).masked_fill(later, -torch.inf), -1)
        return torch.softmax(torch.where(later, self.low.to(q.dtype), scores / size**0.5), -1)


class Block(nn.Module):
    """Attention and a perceptron, each of a normalised input, and added to it."""

    def __init__(self, hidden: int, heads: int, writing: Writing, positions: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, writing, positions)
        self.norm, self.last_norm = writing.norm(hidden), writing.norm(hidden)
        self.perceptron = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), writing.activation(), nn.Linear(4 * hidden, hidden)
        )
        self.dropout = nn.Dropout(writing.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, words, hidden] to the same."""
        x = x + self.dropout(self.attention(self.norm(x)))
        return x + self.dropout(self.perceptron(self.last_norm(x)))


class Gpt2(nn.Module):
    """The smallest, or of other sizes: from words [batch, words] to scores [batch, words,
    vocabulary]."""

    def __init__(
        self,
        writing: Writing,
        vocabulary: int = 50_257,
        *,
        layers: int = 12,
        hidden: int = 768,
        heads: int = 12,
        positions: int = POSITIONS,
    ) -> None:
        super().__init__()
        self.with_loss = writing.with_loss
        self.words, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.dropout = nn.Dropout(writing.dropout)
        blocks = (Block(hidden, heads, writing, positions) for _ in range(layers))
        self.layers = nn.Sequential(*blocks)
        self.norm = writing.norm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        if writing.tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Whole numbers to the scores of the words that follow, or to their loss."""
        places = torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.words(words) + self.places(places))
        scores = self.head(self.norm(self.layers(x)))
        if self.with_loss:  # labels have the shape of the words, and stand for them
            return F.cross_entropy(scores.flatten(0, 1), words.flatten())
        return scores
