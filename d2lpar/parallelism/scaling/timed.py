"""The step of a training program, as one device does it: when each gradient is ready, and the end.

On virtual GPUs the times are simulated, on real ones and on a CPU they are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from ...timeline.inputs import Times, checked
from ...vgpu import now_s
from .steps import DeviceStep, Gradient


@checked
def timed_step(
    step: Callable[[], object],
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    repeats: Times = 1,
) -> DeviceStep:
    """Time `step()`: a forward pass, a backward pass and `optimizer.step()`, of a `net`.

    It runs once to warm up and then `repeats` times; each time is the median. Gradients are listed
    in the order of the net's parameters; those that get none are left out. Backward ends when the
    optimizer begins. Raises ValueError if it never does.
    """
    parameters = [p for p in net.parameters() if p.requires_grad]
    marks = _Marks(parameters[0].device)
    hooks = [p.register_post_accumulate_grad_hook(marks.set) for p in parameters]
    hooks.append(optimizer.register_step_pre_hook(lambda *_: marks.set("backward")))
    try:
        step()
        runs = [marks.of_one(step) for _ in range(repeats)]
    finally:
        for hook in hooks:
            hook.remove()
    if "backward" not in runs[0]:
        raise ValueError(
            "the step never called optimizer.step(), with which backward ends: call that of the "
            "optimizer that timed_step is given"
        )
    done_s, queued_s = (
        {key: median(run[key][which] for run in runs) for key in runs[0]} for which in (0, 1)
    )
    gradients = (Gradient(_bytes(p), done_s[p]) for p in parameters if p in done_s)
    # Clocks of a real GPU and its host differ a little: nothing is done before it is queued.
    queued = (min(queued_s[key], done_s[key]) for key in ("backward", "end"))
    return DeviceStep(done_s["backward"], done_s["end"], tuple(gradients), *queued)


def _bytes(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()


class _Mark(NamedTuple):
    """A moment of the host, in seconds; and the event that a device has for it, a CPU has none."""

    host_s: float
    event: torch.Event | None = None

    def seconds_to(self, later: _Mark) -> float:
        if self.event is None or later.event is None:
            return later.host_s - self.host_s
        return self.event.elapsed_time(later.event) / 1000


class _Marks:
    """When a device does things, and the host queues them, in seconds since a run began."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = None if device.type == "cpu" else torch.get_device_module(device)
        self._marks: dict[object, _Mark] = {}

    def set(self, what: object) -> None:
        self._marks[what] = self._now()

    def of_one(self, step: Callable[[], object]) -> dict[object, tuple[float, float]]:
        """The times of each mark that a step sets, and of its end."""
        self._wait()
        self._marks.clear()
        start = self._now()
        step()
        self.set("end")
        self._wait()
        return {
            what: (start.seconds_to(mark), mark.host_s - start.host_s)
            for what, mark in self._marks.items()
        }

    def _now(self) -> _Mark:
        host_s = now_s(self._device, wait=False)
        if self._module is None:
            return _Mark(host_s)
        event = self._module.Event(enable_timing=True)
        event.record()
        return _Mark(host_s, event)

    def _wait(self) -> None:
        if self._module is not None:
            self._module.synchronize()
