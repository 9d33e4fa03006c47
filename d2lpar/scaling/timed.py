"""The step of a training program, as one device does it: when each gradient is ready, and the end.

On virtual GPUs the times are simulated, on real ones and on a CPU they are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from .steps import Gradient, Step


def timed_step(
    step: Callable[[], object],
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    repeats: int = 1,
) -> Step:
    """Time `step()`: a forward pass, a backward pass and `optimizer.step()`, of a `net`.

    It runs once to warm up and then `repeats` times; each time is the median. Gradients are listed
    in the order of the net's parameters; those that get none are left out. Backward ends when the
    optimizer begins. Raises ValueError if it never does.
    """
    parameters = [p for p in net.parameters() if p.requires_grad]
    marks = _Marks(parameters[0].device)
    hooks = [p.register_post_accumulate_grad_hook(marks.ready) for p in parameters]
    hooks.append(optimizer.register_step_pre_hook(lambda *_: marks.ready("backward")))
    try:
        step()
        runs = [marks.of_one(step) for _ in range(repeats)]
    finally:
        for hook in hooks:
            hook.remove()
    times_s = {key: median(run[key] for run in runs) for key in runs[0]}
    if "backward" not in times_s:
        raise ValueError("the step never called optimizer.step(), with which backward ends")
    gradients = (Gradient(_bytes(p), times_s[p]) for p in parameters if p in times_s)
    return Step(times_s["backward"], times_s["end"], tuple(gradients))


def _bytes(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()


class _Marks:
    """When things happened on a device, in seconds since a run of the step began."""

    def __init__(self, device: torch.device) -> None:
        self._module = None if device.type == "cpu" else torch.get_device_module(device)
        self._marks: dict[object, object] = {}

    def ready(self, what: object) -> None:
        self._marks[what] = self._now()

    def of_one(self, step: Callable[[], object]) -> dict[object, float]:
        self._wait()
        self._marks.clear()
        start = self._now()
        step()
        self.ready("end")
        self._wait()
        return {what: self._between_s(start, mark) for what, mark in self._marks.items()}

    def _now(self) -> object:
        if self._module is None:
            return time.perf_counter()
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def _wait(self) -> None:
        if self._module is not None:
            self._module.synchronize()

    def _between_s(self, start: object, end: object) -> float:
        return end - start if self._module is None else start.elapsed_time(end) / 1000
