"""A puzzle on virtual ranks: a program that hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..vgpu import run_ranks
from .laboratory import laboratory, random

BOX, NUMBERS, FEW = "8x-h100-nvswitch", 1_000_000, 100
SHOWN = ("vgpu:2", "vgpu:3")


def gradients(counts: Sequence[int], numbers: int, seed: int) -> list[list[torch.Tensor]]:
    """So many for each rank."""
    return [
        [random(1000 * seed + 100 * rank + k, numbers) for k in range(count)]
        for rank, count in enumerate(counts)
    ]


def unstuck(answer: Callable, counts: Sequence[int], numbers: int, seed: int) -> dict[str, Any]:
    """Ranks with different numbers of gradients."""
    host = gradients(counts, numbers, seed)
    with laboratory(BOX, len(counts)) as lab:
        own = [[g.to(d) for g in each] for each, d in zip(host, lab.devices, strict=True)]
        keeps = [g for each in own for g in each] if numbers < FEW else []
        inputs = own if numbers < FEW else [[g.clone() for g in each] for each in own]

        def on_rank() -> object:
            return answer([*inputs[dist.get_rank()]])

        trial = lab.run(lambda: run_ranks(on_rank, lab.devices), keeps=keeps)
        return trial.evidence(devices=SHOWN)
