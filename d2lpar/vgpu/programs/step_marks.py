"""How long a training step takes: the simulated time from one update of an optimizer to the next.

A step is what lies between two calls of `step` of the optimizer that a rank steps most often: of
programs that train one model after another, the one that is trained longest. Marks are queued
behind the update, so that a host that runs ahead of its device does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from weakref import WeakKeyDictionary

import torch

from ..device_naming import TYPE, naming
from ..ranks.launcher import rank_number
from ..ranks.state.module_variables import watching_optimizers
from ..sim.clock import HostThread
from ..sim.event_queue import QueuedWork
from ..torch_backend.machine.runtime import Runtime


class StepMarks:
    """Marks behind the updates of each rank's optimizers."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._by_optimizer: WeakKeyDictionary[torch.optim.Optimizer, list[QueuedWork]]
        self._by_optimizer = WeakKeyDictionary()
        self._marks: defaultdict[int, list[list[QueuedWork]]] = defaultdict(list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the updates of the block."""
        with watching_optimizers(self._step):
            yield

    def _step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        device = self._device_of(optimizer)
        if device is None:
            return
        marks = self._by_optimizer.get(optimizer)
        if marks is None:
            marks = self._by_optimizer[optimizer] = []
            self._marks[rank_number()].append(marks)
        stream = (device, self._rt.current_stream(device))

        def mark(host_thread: HostThread) -> None:
            marks.append(self._rt.clock.record_event(host_thread, stream))

        self._rt.host_threads.submit(device, mark)

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

    def _device_of(self, optimizer: torch.optim.Optimizer) -> int | None:
        """That of its first parameter on one, DTensors among them. The rank's own if all are on the
        host, to which they may be offloaded; None if it has used no device."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found = naming().parse(parameter.device)
                if isinstance(found, torch.device) and found.type == TYPE:
                    return found.index
        return self._rt.current_device if torch.cuda.is_initialized() else None

    def _of_ranks(self) -> list[list[QueuedWork]]:
        """The marks of the optimizer that each rank has stepped most often."""
        return [max(of_rank, key=len) for of_rank in self._marks.values()]
