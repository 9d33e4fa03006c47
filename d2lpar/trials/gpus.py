"""Puzzles on virtual GPUs: spread, broadcast, overlap, wait little, and keep the order.

A seed draws the values, and what may vary without a change of the work there is.
"""

from __future__ import annotations

import random as shuffling
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .laboratory import laboratory, random
from .plain import seen

BOX, PAIR = "8x-h100-nvswitch", "2x-v100-textbook"

SPREAD_SIZES = (
    1280, 256, 768, 1280, 512, 1024, 256, 1024, 768, 512, 1280, 512, 1024, 256, 768, 512,
)  # fmt: skip
SPREAD_PRODUCTS = 4
BROADCAST_NUMBERS = 16 * 1024 * 1024
LANES, LANE_SIZE = 12, 1024
STEPS, WIDTH, ROWS, RATES = 12, 512, 1024, (0.02, 0.08)
RELAYS, RELAY_SIZE = 12, 1024
# What a small ResNet has: few large tensors, and many tiny ones.
SHAPES = (
    [(64, 64, 3, 3), (64,), (64,)] * 12 + [(128, 128, 3, 3), (128,), (128,)] * 12 + [(1000, 128)]
)


def square(X: torch.Tensor) -> torch.Tensor:
    """One product."""
    return X @ X


def two_products(X: torch.Tensor) -> torch.Tensor:
    """Two, one after the other."""
    return X @ X @ X


def four_products(X: torch.Tensor) -> torch.Tensor:
    """Four, one after the other."""
    Y = X
    for _ in range(SPREAD_PRODUCTS):
        Y = Y @ X
    return Y


def squares(sizes: Sequence[int], seed: int) -> list[torch.Tensor]:
    """Random square matrices, whose products stay small."""
    return [random(100 * seed + i, size, size) / size**0.5 for i, size in enumerate(sizes)]


def spread_sizes(seed: int) -> list[int]:
    """Always the same ones, in another order."""
    return shuffling.Random(seed).sample(SPREAD_SIZES, len(SPREAD_SIZES))


def spread(answer: Callable, seed: int) -> dict[str, Any]:
    """Matrices on GPU 0 of eight, and work on each."""
    with laboratory(BOX) as lab:
        inputs = [X.to(lab.devices[0]) for X in squares(spread_sizes(seed), seed)]
        return lab.run(answer, inputs, four_products, lab.devices, keeps=inputs).evidence()


def broadcast(answer: Callable, seed: int) -> dict[str, Any]:
    """A tensor on GPU 0 of eight."""
    with laboratory(BOX) as lab:
        x = random(seed, BROADCAST_NUMBERS).to(lab.devices[0])
        return lab.run(answer, x, lab.devices, keeps=[x]).evidence()


def three_lanes(answer: Callable, seed: int) -> dict[str, Any]:
    """Matrices in page-locked memory, and there the results, too."""
    with laboratory(PAIR, 1) as lab:
        host = squares((LANE_SIZE,) * LANES, seed)
        inputs = [X.pin_memory() for X in host]
        outputs = [torch.zeros_like(X).pin_memory() for X in host]
        trial = lab.run(answer, inputs, outputs, two_products, lab.devices[0], keeps=inputs)
        return trial.evidence() | {"outputs": seen(outputs)}


def training(
    seed: int,
) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]], float]:
    """Weights of three layers, batches, and the learning rate."""
    first = 100 * seed
    weights = [random(first + i, WIDTH, WIDTH) / WIDTH**0.5 for i in range(3)]
    batches = [
        (random(first + 10 + i, ROWS, WIDTH), random(first + 40 + i, ROWS, WIDTH))
        for i in range(STEPS)
    ]
    return weights, batches, shuffling.Random(seed).uniform(*RATES)


def unsynced(answer: Callable, seed: int) -> dict[str, Any]:
    """Training in place, on one GPU."""
    weights, batches, rate = training(seed)
    with laboratory(PAIR, 1) as lab:
        (gpu,) = lab.devices
        mine = [W.to(gpu).requires_grad_() for W in weights]
        data = [(X.to(gpu), y.to(gpu)) for X, y in batches]
        trial = lab.run(answer, mine, data, rate)
        return trial.evidence(host=True) | {"weights": seen(mine)}


def relay(answer: Callable, seed: int) -> dict[str, Any]:
    """Matrices on GPU 0; the second half of the work is for GPU 1."""
    with laboratory(PAIR, 2) as lab:
        inputs = [X.to(lab.devices[0]) for X in squares((RELAY_SIZE,) * RELAYS, seed)]
        works = two_products, square
        return lab.run(answer, inputs, *works, lab.devices, keeps=inputs).evidence()


def gradients(seed: int) -> list[list[torch.Tensor]]:
    """Those of each of eight ranks: always the same shapes, in another order."""
    shapes = shuffling.Random(seed).sample(SHAPES, len(SHAPES))
    return [
        [random(10_000 * seed + 1000 * rank + j, *shape) for j, shape in enumerate(shapes)]
        for rank in range(8)
    ]


def sum_gradients(answer: Callable, seed: int) -> dict[str, Any]:
    """Gradients on eight GPUs."""
    with laboratory(BOX) as lab:
        own = [
            [tensor.to(device) for tensor in each]
            for each, device in zip(gradients(seed), lab.devices, strict=True)
        ]
        trial = lab.run(answer, own, lab.devices)
        return trial.evidence() | {"gradients": seen(own)}
