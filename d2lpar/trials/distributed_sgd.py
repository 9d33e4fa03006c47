"""Trials of lesson 06: answers that are given functions."""

from __future__ import annotations

from collections.abc import Callable

from .plain import seen

GRADIENTS: dict[str, Callable[[float], float]] = {
    "w": lambda w: w,
    "2 * w - 3": lambda w: 2 * w - 3,
    "w ** 3 - w": lambda w: w**3 - w,
}

POWERS = [8, 16, 32, 64, 128, 256, 512, 1024]
MEASURED_S = {20: 0.031, 32: 0.018, 50: 0.052, 64: 0.034, 100: 0.090, 128: 0.066}
# Devices that compute faster and slower than they send; steps by the critical batch.
TARGETS: list[tuple[list[int], Callable[[int], float], float, Callable[[int], float]]] = [
    (POWERS, lambda b: 0.001 + 1.8e-4 * b, 0.020, lambda b: 1000 * (1 + 64 / b)),
    (POWERS, lambda b: 0.020 + 1e-4 * b, 0.025, lambda b: 500 * (1 + 900 / b)),
    (POWERS[::-1], lambda b: 0.002 + 1e-3 * b, 0.100, lambda b: 2000 * (1 + 20 / b)),
    (POWERS, lambda b: 1e-5 * b, 0.200, lambda b: 300 * (1 + 500 / b)),  # t1 < t2 for all
    ([*MEASURED_S], MEASURED_S.__getitem__, 0.010, lambda b: 400 * (1 + 150 / b)),
]


def stale_sgd(
    answer: Callable, gradient: str, w: float, lr: float, delay: int, steps: int
) -> object:
    """The weights, for a gradient by its name."""
    return seen(answer(GRADIENTS[gradient], w, lr, delay, steps))


def best_batch(answer: Callable, number: int) -> object:
    """The batch, for a target by its number."""
    batches, t1_s, t2_s, steps = TARGETS[number]
    return answer(list(batches), t1_s, t2_s, steps)
