"""Trials of multi-GPU training from scratch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import machines
from ..vgpu import record, simulate
from .evidence import bars_of, gantt_of
from .plain import seen

BOX = "8x-v100-pcie"
LENET = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
MEGABYTE = 250_000  # numbers
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


def split_batch(answer: Callable, images: int, n: int) -> dict[str, Any]:
    """What it returns for a batch [images, 2] whose rows and labels are numbered."""
    with simulate(BOX, n, with_values=True) as devices:
        X, y = torch.arange(2.0 * images).reshape(images, 2), torch.arange(images)
        found = answer(X, y, list(devices))
        return {
            "shards": seen(found),
            "devices": [str(device) for device in devices],
            "picture": _images_on(found, images),
        }


def _images_on(found: object, images: int) -> dict:
    """How many images each shard has that no other had before it, how many that one had, and how
    many are in none; nothing to draw of what is no list of tensors."""
    try:
        shards = [set(labels.tolist()) for labels in found[1]]  # type: ignore[index]
    except (TypeError, IndexError, AttributeError):
        return {}
    bars, before = {}, set[int]()
    for number, shard in enumerate(shards):
        once, again = len(shard - before), len(shard & before)
        bars[f"device {number}"] = {"once": once, "again": again, "lost": 0}
        before |= shard
    bars["nowhere"] = {"once": 0, "again": 0, "lost": len(set(range(images)) - before)}
    return bars_of(bars, f"of {images} images")


def all_reduce(answer: Callable, n: int) -> dict[str, Any]:
    """What n tensors of a megabyte hold afterwards, each on a device of its own."""
    with simulate(BOX, n, with_values=True) as devices:
        data = [host.to(device) for host, device in zip(to_sum(n), devices, strict=True)]
        with record() as timeline:
            answer(list(data))
        return {"data": [seen(tensor) for tensor in data], "picture": gantt_of(timeline)}


def to_sum(n: int) -> list[torch.Tensor]:
    """n tensors of whole numbers, of which float32 makes an exact sum."""
    generator = torch.Generator().manual_seed(n)
    return [torch.randint(-99, 100, (MEGABYTE,), generator=generator).float() for _ in range(n)]


def train_batch(answer: Callable, n: int, steps: int) -> dict[str, Any]:
    """The parameters of n replicas of LeNet after each step, and what the devices did in the last:
    FLOP of each, and a timeline."""
    with simulate(BOX, n, with_values=True) as devices:
        params, batches = lenet_run(steps)
        replicas = [[p.to(d, copy=True).requires_grad_() for p in params] for d in devices]
        after = []
        for X, y in batches:
            with record() as timeline:
                answer(X, y, replicas, list(devices), LR)
            after.append([[seen(p.clone()) for p in replica] for replica in replicas])
        flops = [sum(s.flops for s in timeline.on(str(d), "compute")) for d in devices]
        return {"after": after, "flops": flops, "picture": gantt_of(timeline)}


def train_batch_without_sums(answer: Callable) -> list:
    """The parameters of two replicas after a step whose `add` does nothing."""
    with simulate(BOX, 2, with_values=True) as devices:
        params, ((X, y),) = lenet_run(1)
        replicas = [[p.to(d, copy=True).requires_grad_() for p in params] for d in devices]
        answer(X, y, replicas, list(devices), LR, lambda _: None)
        return [[seen(p) for p in replica] for replica in replicas]


LR = 0.1


def lenet_run(
    steps: int,
) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Parameters of LeNet in double precision, and a batch of 50 images and labels a step."""
    generator = torch.Generator().manual_seed(7)
    params = [0.1 * torch.randn(s, generator=generator, dtype=torch.float64) for s in LENET]
    images = torch.rand(steps, 50, 1, 28, 28, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (steps, 50), generator=generator)
    return params, list(zip(images, labels, strict=True))
