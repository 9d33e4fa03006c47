"""Trials of lesson 02."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .. import machines
from ..vgpu import simulate, syncs
from .evidence import bars_of
from .plain import seen


def mean_loss(answer: Callable, count: int) -> dict[str, Any]:
    """The losses 0, 1, 4, … of so many batches, on a GPU."""
    with simulate(machines.DEFAULT, 1, with_values=True) as (device,):
        losses = [torch.tensor(float(i * i), device=device) for i in range(count)]
        calls: list[tuple[int, int]] = []

        def step(X: int, y: int) -> torch.Tensor:
            calls.append((X, y))
            return losses[X]

        with syncs() as waits:
            got = answer(step, [(i, -i) for i in range(count)])
        return {
            "got": seen(got),
            "calls": [list(call) for call in calls],
            "waits": [str(wait.place) for wait in waits],
        }


class Rates(NamedTuple):
    """What the lesson has measured of a GPU, its host and its link; seconds, bytes, FLOP."""

    flops_per_s: float
    kernel_alpha_s: float
    bytes_per_s: float
    dispatch_s: float
    copy_alpha_s: float
    link_bytes_per_s: float


def could_wait_for(
    answer: Callable, steps: Mapping[str, Sequence], rates: Sequence[float]
) -> dict[str, Any]:
    """What it says of steps: {name: (kernels, copies, seconds of the loader)}."""
    found = {}
    for name, (kernels, copies, load_s) in steps.items():
        pairs = [(flops, nbytes) for flops, nbytes in kernels]
        found[name] = answer(pairs, list(copies), load_s, Rates(*rates))
    bars = {name: _milliseconds(parts) for name, parts in found.items()}
    drawn = bars_of(bars, "ms") if all(bars.values()) else {}
    return {"got": seen(found), "picture": drawn}


def _milliseconds(parts: object) -> dict[str, float]:
    """What can be drawn of the parts of a step."""
    if not isinstance(parts, dict):
        return {}
    numbers = {str(name): s for name, s in parts.items() if isinstance(s, int | float)}
    return {name: 1e3 * s for name, s in numbers.items() if 0 <= s < 1e6}
