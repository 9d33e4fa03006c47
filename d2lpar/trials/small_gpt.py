"""The parts of a small GPT, and an answer that puts them together."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn

from ..lesson.models import Block

WORDS, WIDTH, HEADS, TOKENS, LAYERS = 32, 48, 4, 16, 2


def parts(seed: int = 0, *, words: int = WORDS, width: int = WIDTH, tokens: int = TOKENS,
          layers: int = LAYERS) -> SimpleNamespace:  # fmt: skip
    """The modules of a small GPT: `words`, `places`, `blocks`, `norm`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SimpleNamespace(
            words=nn.Embedding(words, width),
            places=nn.Embedding(tokens, width),
            blocks=nn.ModuleList(Block(width, HEADS) for _ in range(layers)),
            norm=nn.LayerNorm(width),
        )


def small_gpt(answer: Callable, tokens: torch.Tensor, seed: int, sizes: dict[str, int]) -> object:
    """The scores of all words, for each token."""
    return answer(tokens, parts(seed, **sizes))
