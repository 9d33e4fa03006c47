"""Trials of lesson 04."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import machines
from ..vgpu.api.simulation import record, simulate
from .plain import seen

SHAPES = [(20, 1, 3, 3), (20,), (5, 4), (5,), (3, 5), (3,), (2, 3), (2,)]


def gradients(n: int) -> list[list[torch.Tensor]]:
    """Whole numbers, for each of n devices."""
    generator = torch.Generator().manual_seed(n)
    return [
        [torch.randint(-9, 10, s, generator=generator).float() for s in SHAPES] for _ in range(n)
    ]


def all_reduce_buckets(answer: Callable, n: int) -> dict[str, Any]:
    """Gradients on n devices: what they are afterwards, and how many copies were made."""
    with simulate("8x-v100-pcie", n, with_values=True) as devices:
        grads = [[g.to(d) for g in rank] for rank, d in zip(gradients(n), devices, strict=True)]
        with record() as timeline:
            answer([list(rank) for rank in grads])
        copies = len(timeline.where(lambda s: s.kind == "copy"))
        return {"gradients": [[seen(g) for g in rank] for rank in grads], "copies": copies}


def accumulate(answer: Callable, pieces: int) -> dict[str, Any]:
    """The gradients that it leaves, the most memory that it held meanwhile, and its FLOP.

    Both are read from the timeline: `reset_peak_memory_stats` in an answer does not change it.
    """
    with simulate(machines.DEFAULT, 1, with_values=True) as (device,):
        generator = torch.Generator().manual_seed(3)
        X = torch.rand(480, 64, generator=generator).to(device)
        y = torch.rand(480, generator=generator).to(device)
        start = [torch.rand(64, 512, generator=generator), torch.rand(512, 1, generator=generator)]
        params = [p.to(device).requires_grad_() for p in start]
        held = torch.get_device_module(device).memory_allocated(device)
        with record() as timeline:
            answer(_loss, X, y, params, pieces)
        peak = max((sample.bytes for sample in timeline.memory), default=held) - held
        return {
            "gradients": [None if p.grad is None else seen(p.grad) for p in params],
            "peak_bytes": peak,
            "flops": sum(span.flops for span in timeline.on(device, "compute")),
        }


def _loss(X: torch.Tensor, y: torch.Tensor, params: Sequence[torch.Tensor]) -> torch.Tensor:
    return ((torch.relu(X @ params[0]) @ params[1]).squeeze(1) - y).square().sum()
