"""Trials of lesson 02."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import machines
from ..vgpu.api.detectors import syncs
from ..vgpu.api.simulation import simulate
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
