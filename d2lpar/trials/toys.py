"""Puzzles on the toy machine: a program's verbs are written down here, and played by the judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from ..parallelism.toy_machine import Gpu, Job, Order


def programs(answer: Callable, job: dict[str, Any]) -> list[list[list[Any]]]:
    """For each rank its verbs, in order, each as the fields of an `Order`."""
    found = []
    for rank in range(job["ranks"]):
        gpu = Gpu(rank, Job(**job))
        answer(gpu)
        found.append([_plain(order) for order in gpu.orders])
    return found


def _plain(order: object) -> list[Any]:
    """Its fields; nothing of what is no order."""
    return list(astuple(order)) if isinstance(order, Order) else []
