"""A puzzle of memory: recompute as little as fits. The answer is a plan; the grader runs it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ... import machines
from ...timeline.formatting import bytes_text
from ...trials.calling import Called
from ...trials.evidence import memory_of
from ...trials.laboratory import laboratory
from ..verdict import Wrong
from .evidence import kind
from .puzzle import Outcome

CAPACITY_BYTES = 16 * 10**9  # as its page says: for the program, beside what CUDA itself takes
_V100 = machines.machine("2x-v100-textbook")
BOX = machines.machine(_V100, memory_bytes=CAPACITY_BYTES + _V100.accelerators[0].context_bytes)
IMAGE, FEW = 112, 4
# Channels of each block, and whether it halves the image first.
BLOCKS = (
    (64, False), (64, False), (128, True), (128, False), (128, False),
    (256, True), (256, False), (256, False), (512, True), (512, False),
)  # fmt: skip
CONVOLUTIONS, CONVOLUTIONS_IN_ALL = (1, 3), 20  # in a block, at least and at most; in all
# Times the memory that there is the activations would take: a little more, and much more.
TOO_MUCH = (1.2, 1.7)
INPUT = 0.25  # of its bytes a block that is recomputed needs all the same, for its input above all
ROOMS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.8, 0.75)  # of the capacity: tried in turn
ROOM = 0.97  # of the memory: the rest is for what comes and goes
TEXT_PLAN = "expected a list of {count} times True or False, got {got}"
TEXT_FULL = (
    "out of memory: with {again} of {count} blocks recomputed it needs more than the "
    "{capacity} of the GPU. {plan}"
)
TEXT_AGAIN = "it fits in 16 GB with {images} images a step, and recomputes for {mine:.0f} ms"


@dataclass(frozen=True)
class Network:
    """Blocks by how often each has a convolution, and the images of a step."""

    convolutions: tuple[int, ...]
    images: int

    def blocks(self, device: torch.device) -> list[nn.Module]:
        """Blocks of very different sizes; the last one makes a number of each image."""
        found: list[nn.Module] = []
        before = 3
        for (channels, halves), count in zip(BLOCKS, self.convolutions, strict=True):
            layers: list[nn.Module] = [nn.MaxPool2d(2)] if halves else []
            for _ in range(count):
                layers.append(nn.Conv2d(before, channels, 3, padding=1, device=device))
                layers += [nn.BatchNorm2d(channels, device=device), nn.ReLU()]
                before = channels
            found.append(nn.Sequential(*layers))
        return found


@dataclass(frozen=True)
class Table:
    """Of each block the seconds of its forward pass, and the bytes it keeps; and what there is."""

    seconds: list[float]
    kept_bytes: list[int]
    capacity_bytes: int


def drawn(seed: int) -> list[tuple[Network, Table]]:
    """Networks whose activations take more memory than there is: a little more, and much more."""
    source = random.Random(seed)
    return [_drawn(source, too_much) for too_much in TOO_MUCH]


def _drawn(source: random.Random, too_much: float) -> tuple[Network, Table]:
    counts = [CONVOLUTIONS[0]] * len(BLOCKS)
    while sum(counts) < CONVOLUTIONS_IN_ALL:
        i = source.randrange(len(counts))
        counts[i] += counts[i] < CONVOLUTIONS[1]
    few = table(Network(tuple(counts), FEW))
    images = int(FEW * too_much * few.capacity_bytes / sum(few.kept_bytes))
    network = Network(tuple(counts), images)
    return network, table(network)


def recompute(answer: Called, seed: int) -> Outcome:
    """`recompute(seconds, kept_bytes, capacity_bytes)`: for each block, whether again.

    The figure is how long is recomputed, in percent of the best plan that the judge finds, for the
    network of two for which that is worse.
    """
    outcomes = [_judged(answer, network, known) for network, known in drawn(seed)]
    return max(outcomes, key=lambda outcome: outcome.figure)


def _judged(answer: Called, network: Network, known: Table) -> Outcome:
    got = answer([*known.seconds], [*known.kept_bytes], known.capacity_bytes)
    if not isinstance(got, list | tuple) or [type(one) for one in got] != [bool] * len(BLOCKS):
        raise Wrong(TEXT_PLAN.format(count=len(BLOCKS), got=kind(got)))
    try:
        mine = step(network, got)
    except torch.OutOfMemoryError:
        raise Wrong(
            TEXT_FULL.format(
                again=sum(got),
                count=len(got),
                capacity=bytes_text(CAPACITY_BYTES),
                plan="Recompute a block that keeps more",
            )
        ) from None
    plan, best = best_step(network, known)
    again_s = recomputed_s(known, got)
    text = TEXT_AGAIN.format(images=network.images, mine=1e3 * again_s)
    return Outcome(100 * again_s / recomputed_s(known, plan), text, mine.picture, best.picture)


def recomputed_s(known: Table, plan: Sequence[bool]) -> float:
    """How long the blocks take that a plan recomputes."""
    return sum(s for s, again in zip(known.seconds, plan, strict=True) if again)


def table(network: Network) -> Table:
    """What a student is told of a network."""
    with laboratory(BOX, 1, with_values=False) as lab:
        (gpu,) = lab.devices
        seconds, kept = [], []
        vgpu = torch.get_device_module(gpu)
        between = [torch.empty(network.images, 3, IMAGE, IMAGE, device=gpu)]
        for block in network.blocks(gpu):
            x = between[-1]
            small = x[:FEW].detach().clone()
            held = vgpu.memory_allocated(gpu)
            out = block(small)
            kept.append((vgpu.memory_allocated(gpu) - held) * network.images // FEW)
            del out, small
            with torch.no_grad():
                trial = lab.run(block, x)
            seconds.append(trial.seconds)
            assert isinstance(trial.result, torch.Tensor)
            between = [trial.result]
        return Table(seconds, kept, int(ROOM * CAPACITY_BYTES))


@dataclass(frozen=True)
class Step:
    """A step with some blocks recomputed: its time, and its memory."""

    seconds: float
    picture: dict


def step(network: Network, plan: Sequence[bool]) -> Step:
    """Run one. Raises torch.OutOfMemoryError if it does not fit."""
    with laboratory(BOX, 1, with_values=False) as lab:
        (gpu,) = lab.devices
        blocks = network.blocks(gpu)
        x = torch.empty(network.images, 3, IMAGE, IMAGE, device=gpu)

        def train() -> None:
            y = x
            for block, again in zip(blocks, plan, strict=True):
                y = checkpoint(block, y, use_reentrant=False) if again else block(y)
            y.mean().backward()

        trial = lab.run(train)
        return Step(trial.seconds, memory_of(trial.timeline, CAPACITY_BYTES))


def best_step(network: Network, known: Table) -> tuple[Sequence[bool], Step]:
    """Of the plans that need a share of the memory at most the one with the least to recompute;
    the largest share that fits."""
    plans = [
        (
            recomputed_s(known, plan),
            sum(
                k * (INPUT if again else 1) for k, again in zip(known.kept_bytes, plan, strict=True)
            ),
            plan,
        )
        for plan in product((False, True), repeat=len(BLOCKS))
    ]
    for room in ROOMS:
        fits = [each for each in plans if each[1] <= room * known.capacity_bytes]
        try:
            return min(fits)[2], step(network, min(fits)[2])
        except torch.OutOfMemoryError:
            continue
    every = [True] * len(BLOCKS)
    return every, step(network, every)
