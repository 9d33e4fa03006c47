"""How long a training step takes: the simulated time from one update of an optimizer to the next.

A step is what lies between two calls of `step` of the optimizer that a rank steps first. Marks are
queued behind the update, so that a host that runs ahead of its device does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import torch

from ..ranks.launcher import rank_number
from ..ranks.module_variables import watching_optimizers
from ..sim.clock import HostThread
from ..sim.event_queue import QueuedWork
from ..torch_backend.runtime import Runtime
from ..torch_backend.tensor import VirtualTensor


class StepMarks:
    """Marks behind the updates of each rank's first optimizer."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._first: dict[int, int] = {}
        self._marks: defaultdict[int, list[QueuedWork]] = defaultdict(list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the updates of the block."""
        with watching_optimizers(self._step):
            yield

    def _step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        rank = rank_number()
        device = _device_of(optimizer)
        if device is None or self._first.setdefault(rank, id(optimizer)) != id(optimizer):
            return
        stream = (device, self._rt.current_stream(device))

        def mark(host_thread: HostThread) -> None:
            self._marks[rank].append(self._rt.clock.record_event(host_thread, stream))

        self._rt.host_threads.submit(device, mark)

    @property
    def count(self) -> int:
        """How many updates the rank has made that made most."""
        return max(map(len, self._marks.values()), default=0)

    def seconds(self) -> float | None:
        """The median of the times between two updates, of the slowest rank; None if there are
        fewer than two. The machine must have settled what was queued."""
        found = []
        for marks in self._marks.values():
            ends = [mark.end_s for mark in marks if mark.end_s is not None]
            if len(ends) > 1:
                found.append(median(b - a for a, b in pairwise(ends)))
        return max(found, default=None)


def _device_of(optimizer: torch.optim.Optimizer) -> int | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, VirtualTensor):
                return parameter.vgpu_index
    return None
