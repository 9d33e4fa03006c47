"""Trials of lesson 06: answers that are given functions, and those that run on virtual ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..parallelism.scaling import DeviceStep, Gradient
from ..timeline import Timeline
from ..vgpu import record, run_ranks
from .evidence import bars_of, gantt_of
from .laboratory import laboratory
from .plain import seen

RING_BOX = "8x-v100-dgx1"
HANG = "no rank can go on"  # how the error of ranks that wait for each other begins

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


def all_reduce_ring(answer: Callable, shape: tuple[int, ...], n: int) -> dict[str, Any]:
    """What each of n virtual GPUs holds afterwards, and how many bytes it has sent.

    Rank r begins with 10**r everywhere: digits of a sum tell how often each rank is in it.
    """
    stuck = ""
    with laboratory(RING_BOX, n) as lab:
        own = [torch.full(shape, 10.0**rank).to(device) for rank, device in enumerate(lab.devices)]
        with record() as timeline:
            try:
                run_ranks(lambda: answer(own[dist.get_rank()]), lab.devices)
            except RuntimeError as error:
                if not str(error).startswith(HANG):
                    raise
                stuck = str(error)
        held = seen(own)
    names = [str(device) for device in lab.devices]
    collectives = {span.name for span in timeline if span.kind == "collective"}
    return {
        "held": held,
        "stuck": stuck,
        "collectives": sorted(collectives),
        "sent_bytes": [_sent_bytes(timeline, name) for name in names],
        "picture": _drawn_sends(timeline),
    }


def ring_of_numbers(answer: Callable, rows: list[list[float]]) -> list[list[float]]:
    """What ranks without GPUs hold afterwards: a send waits there for who receives."""
    own = [torch.tensor(row) for row in rows]
    run_ranks(lambda: answer(own[dist.get_rank()]), len(own))
    return [tensor.tolist() for tensor in own]


def _sent_bytes(timeline: Timeline, device: str) -> int:
    sends = (s for s in timeline if s.kind == "copy" and s.device == device and s.name == "send")
    return sum(span.bytes for span in sends)


def _drawn_sends(timeline: Timeline) -> dict:
    """A row for what each GPU sends, and one for what it adds or copies."""
    return gantt_of(timeline.where(lambda s: s.kind == "compute" or s.name == "send"))


def step_model(
    answer: Callable,
    end_s: float,
    backward_end_s: float,
    gradients: list[tuple[float, int]],
    network: tuple[float, float],
    cap: int,
) -> dict[str, Any]:
    """The seconds of a step whose gradients are (ready_s, bytes), on a network of (latency in
    seconds, bytes per second)."""
    latency_s, bytes_per_s = network

    def exchange_s(nbytes: float) -> float:
        return latency_s + nbytes / bytes_per_s

    step = DeviceStep(
        backward_end_s, end_s, tuple(Gradient(nbytes, ready_s) for ready_s, nbytes in gradients)
    )
    got = answer(step, exchange_s, cap)
    t2_s = exchange_s(sum(nbytes for _, nbytes in gradients))
    mine_s = float(got) if isinstance(got, int | float) else 0.0
    bars = {
        "max(t1, t2)": {"computing": end_s, "waiting": max(0.0, t2_s - end_s)},
        "t1 + t2": {"computing": end_s, "waiting": t2_s},
        "your step": {"computing": min(mine_s, end_s), "waiting": max(0.0, mine_s - end_s)},
    }
    shown = {name: {k: 1e3 * s for k, s in parts.items()} for name, parts in bars.items()}
    return {"step_s": seen(got), "picture": bars_of(shown, "time of a step (ms)")}
