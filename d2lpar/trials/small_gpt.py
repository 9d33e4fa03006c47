"""The parts of a small GPT, and an answer that puts them together."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, TOKENS, LAYERS = 32, 48, 16, 2


class Block(nn.Module):
    """Attention to the tokens before, then a perceptron, each beside a short cut."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[samples, tokens, width] to the same."""
        n, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(later, -1e9).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def parts(seed: int = 0, *, words: int = WORDS, width: int = WIDTH, tokens: int = TOKENS,
          layers: int = LAYERS) -> SimpleNamespace:  # fmt: skip
    """The modules of a small GPT: `words`, `places`, `blocks`, `norm`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SimpleNamespace(
            words=nn.Embedding(words, width),
            places=nn.Embedding(tokens, width),
            blocks=nn.ModuleList(Block(width) for _ in range(layers)),
            norm=nn.LayerNorm(width),
        )


def small_gpt(answer: Callable, tokens: torch.Tensor, seed: int, sizes: dict[str, int]) -> object:
    """The scores of all words, for each token."""
    return answer(tokens, parts(seed, **sizes))
