"""A puzzle of memory: recompute as little as fits. The answer is a plan; the grader runs it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...timeline import Timeline
from ...timeline.formatting import bytes_text
from ...trials.calling import Called
from ...trials.evidence import memory_of
from ...trials.laboratory import laboratory
from ..verdict import Wrong
from .evidence import kind
from .puzzle import Outcome

BOX, BATCH, IMAGE, FEW = "2x-v100-textbook", 384, 112, 4
# Channels of each block, how often it has a convolution, and whether it halves the image first.
BLOCKS = (
    (64, 2, False), (64, 1, False), (128, 2, True), (128, 3, False), (128, 1, False),
    (256, 2, True), (256, 3, False), (256, 1, False), (512, 2, True), (512, 3, False),
)  # fmt: skip
ROOM = 0.97  # of the memory: the rest is for what comes and goes
TEXT_PLAN = "expected a list of {count} times True or False, got {got}"
TEXT_FULL = (
    "out of memory: with {again} of {count} blocks recomputed it needs more than the "
    "{capacity} of the GPU. {plan}"
)


def network() -> list[nn.Module]:
    """Blocks of very different sizes; the last one makes a number of each image."""
    blocks: list[nn.Module] = []
    before = 3
    for channels, count, halves in BLOCKS:
        layers: list[nn.Module] = [nn.MaxPool2d(2)] if halves else []
        for _ in range(count):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.BatchNorm2d(channels)]
            layers += [nn.ReLU()]
            before = channels
        blocks.append(nn.Sequential(*layers))
    return blocks


def recompute(answer: Called) -> Outcome:
    """`recompute(seconds, kept_bytes, capacity_bytes)`: for each block, whether again."""
    seconds, kept, capacity = table()
    got = answer([*seconds], [*kept], capacity)
    if not isinstance(got, list | tuple) or [type(one) for one in got] != [bool] * len(BLOCKS):
        raise Wrong(TEXT_PLAN.format(count=len(BLOCKS), got=kind(got)))
    try:
        seconds_of_step, timeline, has = step(got)
    except torch.OutOfMemoryError:
        raise Wrong(
            TEXT_FULL.format(
                again=sum(got),
                count=len(got),
                capacity=bytes_text(16e9),
                plan="Recompute a block that keeps more",
            )
        ) from None
    return Outcome(1e3 * seconds_of_step, "it fits in 16 GB", memory_of(timeline, has))


def table() -> tuple[list[float], list[int], int]:
    """Of each block the seconds of its forward pass, and the bytes it keeps; and what there is."""
    with laboratory(BOX, 1, with_values=False) as lab:
        (gpu,) = lab.devices
        seconds, kept = [], []
        vgpu = torch.get_device_module(gpu)
        between = [torch.empty(BATCH, 3, IMAGE, IMAGE, device=gpu)]
        for block in network():
            block.to(gpu)
            x = between[-1]
            small = x[:FEW].detach().clone()
            held = vgpu.memory_allocated(gpu)
            out = block(small)
            kept.append((vgpu.memory_allocated(gpu) - held) * BATCH // FEW)
            del out, small
            with torch.no_grad():
                trial = lab.run(block, x)
            seconds.append(trial.seconds)
            assert isinstance(trial.result, torch.Tensor)
            between = [trial.result]
        capacity = int(ROOM * lab.machine.accelerators[0].memory_bytes)
    return seconds, kept, capacity


def step(plan: Sequence[bool]) -> tuple[float, Timeline, int]:
    """Seconds and timeline of a step with some blocks recomputed, and what the GPU has."""
    with laboratory(BOX, 1, with_values=False) as lab:
        (gpu,) = lab.devices
        blocks = [block.to(gpu) for block in network()]
        x = torch.empty(BATCH, 3, IMAGE, IMAGE, device=gpu)

        def train() -> None:
            y = x
            for block, again in zip(blocks, plan, strict=True):
                y = checkpoint(block, y, use_reentrant=False) if again else block(y)
            y.mean().backward()

        trial = lab.run(train)
        return trial.seconds, trial.timeline, lab.machine.accelerators[0].memory_bytes
