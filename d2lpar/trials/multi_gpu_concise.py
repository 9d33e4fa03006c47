"""Trials of lesson 05: ways to average the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..lesson.models import resnet18
from ..timeline import Timeline
from ..vgpu import hazards, now_s, record, run_ranks, simulate
from .evidence import gantt_of
from .plain import seen

BOX, RANKS, IMAGES = "8x-v100-pcie", 8, 256  # where the rungs of the ladder are timed
FEW_RANKS, STEPS = 3, 2

Rung = Callable[[nn.Module, torch.Tensor], None]  # rung(net, loss), on every rank


def averaged(answer: Rung) -> dict[str, Any]:
    """On three ranks, with values, for two steps: what is left over shows in the second.

    For each rank and step, its own gradients and those that the answer left, by their names.
    """
    ranks: dict[int, list] = {}
    with simulate(BOX, FEW_RANKS, with_values=True) as gpus, hazards() as found:
        run_ranks(lambda: ranks.update({dist.get_rank(): _two_steps(answer, gpus)}), gpus)
    return {"ranks": [ranks[rank] for rank in range(FEW_RANKS)], "hazards": len(found)}


def _two_steps(answer: Rung, gpus: list[torch.device]) -> list[dict[str, list]]:
    """Runs on every rank: two steps on data of its own, from the same parameters."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).to(gpus[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    steps = []
    for _ in range(STEPS):
        loss = net(torch.rand(8, 6).to(gpus[rank])).square().sum()
        own = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
        optimizer.zero_grad()
        answer(net, loss)
        optimizer.step()
        steps.append(
            {
                name: [seen(gradient), None if p.grad is None else seen(p.grad)]
                for (name, p), gradient in zip(net.named_parameters(), own, strict=True)
            }
        )
    return steps


def timed(answer: Rung) -> dict[str, Any]:
    """Seconds of a step of ResNet-18, the bytes that a rank all-reduces in it, its FLOP, and a
    picture of what rank 0's GPU did."""
    times: list[tuple[float, float]] = []
    with simulate(BOX, RANKS) as gpus, record() as timeline, hazards():
        run_ranks(lambda: times.append(_second_step(answer, gpus)), gpus)
    begin_s, end_s = min(begin for begin, _ in times), max(end for _, end in times)
    return {
        "seconds": end_s - begin_s,
        "sent_bytes": _all_reduced(timeline, begin_s),
        "flops": _computed(timeline, begin_s),
        "picture": gantt_of(timeline.where(lambda s: s.start_s >= begin_s), devices=("vgpu:0",)),
    }


def _all_reduced(timeline: Timeline, begin_s: float) -> int:
    spans = timeline.on("vgpu:0", "collective")
    return sum(span.bytes for span in spans if span.start_s >= begin_s and "reduce" in span.name)


def _computed(timeline: Timeline, begin_s: float) -> int:
    spans = timeline.on("vgpu:0", "compute")
    return sum(span.flops for span in spans if span.start_s >= begin_s)


def _second_step(answer: Rung, gpus: list[torch.device]) -> tuple[float, float]:
    """Runs on every rank; returns when its second step began and ended."""
    gpu = gpus[dist.get_rank()]
    with torch.device(gpu):
        net = resnet18()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    X = torch.empty(IMAGES // RANKS, 1, 28, 28, device=gpu)
    y = torch.zeros(len(X), device=gpu).long()
    begin_s = 0.0
    for _ in range(2):
        dist.barrier()
        begin_s = now_s(gpu)
        optimizer.zero_grad()
        answer(net, F.cross_entropy(net(X), y))
        optimizer.step()
    return begin_s, now_s(gpu)
