"""How long a training step takes: the simulated time from one update of an optimizer to the next.

A step is what lies between two calls of `step` of the optimizer that a rank steps most often: of
programs that train one model after another, the one that is trained longest. Marks are queued
behind the update, so that a host that runs ahead of its device does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from statistics import median
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...device_naming import TYPE, naming
from ...sim.clock import HostThread, StreamKey
from ...sim.event_queue import QueuedWork
from ...torch_backend.machine.runtime import Runtime


class StepMarks:
    """Marks behind the updates of each rank's optimizers."""

    def __init__(self) -> None:
        self._marks: dict[tuple[int, int], list[QueuedWork]] = defaultdict(list)

    def add(self, rank: int, optimizer: int, mark: QueuedWork) -> None:
        """Note an update of an optimizer of a rank, by their numbers."""
        self._marks[rank, optimizer].append(mark)

    @property
    def count(self) -> int:
        """How many updates the rank has made that made most."""
        return max(map(len, self._of_ranks()), default=0)

    def seconds(self) -> float | None:
        """The median of the times between two updates, of the slowest rank; None if there are
        fewer than two. The machine must have settled what was queued."""
        found = []
        for marks in self._of_ranks():
            ends = [mark.end_s for mark in marks if mark.end_s is not None]
            if len(ends) > 1:
                found.append(median(b - a for a, b in pairwise(ends)))
        return max(found, default=None)

    def last_half(self) -> list[float]:
        """When the second half of the steps began, and when each of them ended, on the first rank
        that has made most; nothing if there are fewer than two steps."""
        most = max(self._of_ranks(), key=len, default=[])
        ends = [mark.end_s for mark in most if mark.end_s is not None]
        return ends[(len(ends) - 1) // 2 :] if len(ends) > 1 else []

    def _of_ranks(self) -> list[list[QueuedWork]]:
        """The marks of the optimizer that each rank has stepped most often."""
        by_rank: dict[int, list[list[QueuedWork]]] = defaultdict(list)
        for (rank, _), marks in self._marks.items():
            by_rank[rank].append(marks)
        return [max(of_rank, key=len) for of_rank in by_rank.values()]


@contextmanager
def steps_told(rt: Runtime, tell: Callable[[HostThread, int, StreamKey], None]) -> Iterator[None]:
    """In the block `tell(host_thread, optimizer, stream)` is called behind each update of an
    optimizer, which has a number."""
    numbers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
    made = count()

    def stepped(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        device = _device_of(optimizer, rt)
        if device is not None:
            if optimizer not in numbers:
                numbers[optimizer] = next(made)
            stream = (device, rt.current_stream(device))
            rt.host_threads.submit(device, tell, numbers[optimizer], stream)

    handle = register_optimizer_step_post_hook(stepped)
    try:
        yield
    finally:
        handle.remove()


def _device_of(optimizer: torch.optim.Optimizer, rt: Runtime) -> int | None:
    """That of its first parameter on one, DTensors among them. The rank's own if all are on the
    host, to which they may be offloaded; None if it has used no device."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found = naming().parse(parameter.device)
            if isinstance(found, torch.device) and found.type == TYPE:
                return found.index
    return rt.current_device if torch.cuda.is_initialized() else None
