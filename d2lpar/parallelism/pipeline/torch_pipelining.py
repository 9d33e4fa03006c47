"""What `torch.distributed.pipelining` does on real ranks: measured, and as orders to compare."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from statistics import median
from string import digits
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from ...timeline import MEASURED, Span, Timeline
from .operations import BACKWARD, FORWARD, INPUTS, WEIGHTS, Operation, Orders

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage

BARRIERS = 9
_NAME = re.compile(r"(\d+)([FBIW])(\d+)")

T = TypeVar("T")
Taken = tuple[str, float, float]  # an operation, its start and its end, by this rank's clock


@contextmanager
def recorded(stage: PipelineStage | Iterable[PipelineStage]) -> Iterator[Timeline]:
    """Measure what the stages of all ranks do in the block.

        stage = PipelineStage(module, rank, world_size, device)
        schedule = Schedule1F1B(stage, 4, loss_fn=F.cross_entropy)
        with recorded(stage) as timeline:
            schedule.step(X) if rank == 0 else schedule.step(target=y)

    Every rank of the stage's process group enters it, with its stage or all of its stages. The
    timeline is empty in the block; when the block has ended on all ranks, it holds on each of them
    one span for each forward and backward pass of all, named as torch does ("2F0": stage 2,
    forward, micro-batch 0) on the devices "rank 0", "rank 1", and so on. Time 0 is the first
    start. What lies between spans is waiting for others, sending, and the loss, with what Python
    and torch take. The first step of a schedule also finds out shapes: record a later one.

    A GPU is waited for before and after each pass. Clocks of one machine are the same; those of
    several are compared after barriers, and may be off by the time that a message takes.
    """
    stages = list(stage) if isinstance(stage, Iterable) else [stage]
    group = stages[0].group
    timeline = Timeline(MEASURED)
    taken: list[Taken] = []
    offset_s = _offset_s(group)
    for one in stages:
        _watch(one, taken)
    try:
        yield timeline
    finally:
        for one in stages:
            for name in _METHODS:
                delattr(one, name)
    own = [(name, start_s - offset_s, end_s - offset_s) for name, start_s, end_s in taken]
    everything = _of_all(own, group)
    first_s = min((start_s for of_rank in everything for _, start_s, _ in of_rank), default=0.0)
    for rank, of_rank in enumerate(everything):
        for name, start_s, end_s in of_rank:
            span = Span(f"rank {rank}", 0, "compute", name, start_s - first_s, end_s - first_s)
            timeline.add(span)


def performed(timeline: Timeline) -> Orders:
    """What each rank did, in the order of time: of a `recorded` timeline, or a simulated one.

    Its devices are taken in the order of their numbers. Spans that are not named as operations
    ("2F0") are left out.
    """
    by_device: dict[str, list[tuple[float, Operation]]] = {}
    for span in timeline:
        if match := _NAME.fullmatch(span.name):
            stage, kind, micro_batch = match.groups()
            operation = Operation(kind, int(stage), int(micro_batch))
            by_device.setdefault(span.device, []).append((span.start_s, operation))
    return [
        [operation for _, operation in sorted(by_device[name], key=lambda timed: timed[0])]
        for name in sorted(by_device, key=_number)
    ]


def _number(device: str) -> int:
    """The number that a device's name ends with."""
    return int(device.removeprefix(device.rstrip(digits)))


# --- watching a stage -----------------------------------------------------------------------------


def _kind_of_backward(*_: object, full_backward: bool = True, **__: object) -> str:
    return BACKWARD if full_backward else INPUTS


# What all of torch's schedules call, and which operation it is.
_METHODS: dict[str, Callable[..., str]] = {
    "forward_one_chunk": lambda *_, **__: FORWARD,
    "backward_one_chunk": _kind_of_backward,
    "backward_weight_one_chunk": lambda *_, **__: WEIGHTS,
}


def _watch(stage: PipelineStage, taken: list[Taken]) -> None:
    """Note the passes of a stage, by methods of its own that stand before its class's."""
    module = torch.get_device_module(stage.device)

    def noting(method: Callable, kind_of: Callable[..., str]) -> Callable:
        @wraps(method)
        def run(micro_batch: int, *args: object, **kwargs: object) -> object:
            operation = Operation(kind_of(*args, **kwargs), stage.stage_index, micro_batch)
            module.synchronize()
            start_s = time.perf_counter()
            result = method(micro_batch, *args, **kwargs)
            module.synchronize()
            taken.append((str(operation), start_s, time.perf_counter()))
            return result

        return run

    for name, kind_of in _METHODS.items():
        setattr(stage, name, noting(getattr(stage, name), kind_of))


def _offset_s(group: dist.ProcessGroup | None) -> float:
    """By how much this rank's clock is ahead of the first rank's."""
    hosts = _of_all(socket.gethostname(), group)
    if len(set(hosts)) == 1:
        return 0.0  # perf_counter counts from the same moment in all processes of a machine
    after_s = []
    for _ in range(BARRIERS):
        dist.barrier(group)
        after_s.append(time.perf_counter())
    first_s = _of_all(after_s, group)[0]
    return median(own - first for own, first in zip(after_s, first_s, strict=True))


def _of_all(value: T, group: dist.ProcessGroup | None) -> list[T]:
    """The values of all ranks."""
    values = [value] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
