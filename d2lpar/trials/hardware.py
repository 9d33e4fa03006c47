"""Trials of lesson 01."""

from __future__ import annotations

from collections.abc import Callable

from .. import machines


def batch_at_ridge(answer: Callable, machine: str, inputs: int, outputs: int) -> object:
    """What it says of the first accelerator of a machine."""
    return answer(machines.machine(machine).accelerators[0], inputs, outputs)
