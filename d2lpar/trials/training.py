"""A small GPT in training on eight virtual ranks, on sentences of this course."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..lesson.course_text import CourseText
from ..lesson.models import gpt, next_word_loss
from ..vgpu import run_ranks
from .laboratory import laboratory
from .plain import seen

BOX, RANKS = "8x-h100-nvswitch", 8
SENTENCES, WORDS = 8, (6, 12)  # so many, of so few words: soon learnt by heart
WIDTH, LAYERS, TOKENS = 48, 1, 16
SAMPLES, STEPS, RATE = 64, 10, 0.3
SHOWN, SHARE = ("vgpu:0", "vgpu:7"), 0.2  # of the picture: ranks and steps are alike


def scores(tokens: torch.Tensor, made: SimpleNamespace) -> torch.Tensor:
    """Scores [samples, tokens, words] by the modules given."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    x = made.words(tokens) + made.places(places)
    for block in made.blocks:
        x = block(x)
    return made.norm(x) @ made.words.weight.T


def text(seed: int) -> CourseText:
    """Some short sentences of the course, each a line."""
    lines = CourseText().text.splitlines()
    short = [line for line in lines if WORDS[0] <= len(line.split()) <= WORDS[1]]
    return CourseText("\n".join(random.Random(seed).sample(short, SENTENCES)) + "\n")


def network(seed: int) -> nn.Module:
    """A small GPT with a number for each word of the text."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return gpt(len(text(seed).vocabulary), width=WIDTH, layers=LAYERS, length=TOKENS)


def batches(seed: int) -> list[torch.Tensor]:
    """Of each step, pieces of the text [samples, tokens + 1]."""
    own = text(seed)
    drawn = [own.batch(SAMPLES, TOKENS, step=step) for step in range(STEPS)]
    return [torch.cat([pieces, following[:, -1:]], 1) for pieces, following in drawn]


def mean_loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next words."""
    return next_word_loss(net(batch[:, :-1]), batch[:, 1:])


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    """What trains it."""
    return torch.optim.SGD(net.parameters(), lr=RATE)


def train_on_ranks(answer: Callable, seed: int) -> dict[str, Any]:
    """The same network and the same batches on each rank."""
    with laboratory(BOX, RANKS) as lab:
        net, drawn = network(seed), batches(seed)
        nets = [deepcopy(net).to(device) for device in lab.devices]
        data = [[batch.to(device) for batch in drawn] for device in lab.devices]

        def on_rank() -> object:
            rank = dist.get_rank()
            return answer(nets[rank], mean_loss, [*data[rank]], optimizer_of(nets[rank]))

        trial = lab.run(lambda: run_ranks(on_rank, lab.devices))
        left = [[seen(p) for p in own.parameters()] for own in nets]
        return trial.evidence(devices=SHOWN, share=SHARE) | {"weights": left}
