"""A small GPT in training on eight virtual ranks."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..vgpu.ranks import run_ranks
from .laboratory import laboratory
from .plain import seen
from .small_gpt import TOKENS, WORDS, parts

BOX, RANKS = "8x-h100-nvswitch", 8
SAMPLES, STEPS, RATE = 64, 10, 1.0
PACE, SCALE = 3, 0.2
SHOWN, SHARE = ("vgpu:0", "vgpu:7"), 0.2  # of the picture: ranks and steps are alike


class Gpt(nn.Module):
    """The modules of `parts` as one network: tokens [samples, tokens] to scores of next words."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        made = parts(seed)
        self.words, self.places, self.blocks = made.words, made.places, made.blocks
        self.norm = made.norm
        self.words.weight.data.mul_(SCALE)  # they are the last layer's matrix, too

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of all words, for each token."""
        return scores(tokens, self)


def scores(tokens: torch.Tensor, made: SimpleNamespace | Gpt) -> torch.Tensor:
    """Scores [samples, tokens, words] by the modules given."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    x = made.words(tokens) + made.places(places)
    for block in made.blocks:
        x = block(x)
    return made.norm(x) @ made.words.weight.T


def text(seed: int) -> torch.Tensor:
    """Synthetic sentences [samples, tokens + 1]: each word is a fixed step after the last."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, WORDS, (SAMPLES, 1), generator=generator)
    return (first + PACE * torch.arange(TOKENS + 1)) % WORDS


def batches(seed: int) -> list[torch.Tensor]:
    """One for each step."""
    return [text(100 * seed + i) for i in range(STEPS)]


def mean_loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next words."""
    return F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def train_on_ranks(answer: Callable, seed: int) -> dict[str, Any]:
    """The same network and the same batches on each rank."""
    with laboratory(BOX, RANKS) as lab:
        net = Gpt(seed)
        nets = [deepcopy(net).to(device) for device in lab.devices]
        data = [[batch.to(device) for batch in batches(seed)] for device in lab.devices]

        def on_rank() -> object:
            rank = dist.get_rank()
            optimizer = torch.optim.SGD(nets[rank].parameters(), lr=RATE)
            return answer(nets[rank], mean_loss, [*data[rank]], optimizer)

        trial = lab.run(lambda: run_ranks(on_rank, lab.devices))
        left = [[seen(p) for p in own.parameters()] for own in nets]
        return trial.evidence(devices=SHOWN, share=SHARE) | {"weights": left}
