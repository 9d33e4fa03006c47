"""Reading the right clock: simulated for virtual GPUs, the wall's for everything else.

Work on accelerators is queued, not done, when a call returns; so all of these synchronise before
they read a clock, on both sides of what they time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import torch

from ...timeline.inputs import MOST_TIMES, Times, checked, require, whole
from ..device_naming import TYPE, device, naming

SIMULATED, MEASURED = "simulated", "measured"

Devices = torch.device | str | Iterable[torch.device | str] | None


def synchronize(devices: Devices = None) -> None:
    """Wait until `devices` (default: all accelerators in use) have done what was queued."""
    for each in _listed(devices):
        if each.type != "cpu":
            torch.get_device_module(each).synchronize(each)


def now_s(devices: Devices = None, *, wait: bool = True) -> float:
    """Seconds on the clock that belongs to `devices`, after everything queued there is done.

    `wait=False` reads the clock as it stands, with work still under way: seldom what one wants.

    None means the simulated clock if there are virtual GPUs, else the wall clock.
    """
    listed = _listed(devices)
    if wait:
        synchronize(listed)
    if any(each.type == TYPE for each in listed):
        from ..torch_backend.machine.runtime import current_runtime

        return current_runtime().now_s()
    return time.perf_counter()


def clock_name(devices: Devices = None) -> str:
    """How the clock that `now_s(devices)` reads is called: "simulated on …" or "measured"."""
    if any(each.type == TYPE for each in _listed(devices)):
        from ..torch_backend.machine.runtime import current_runtime

        return f"{SIMULATED} on {current_runtime().machine.name}"
    return MEASURED


def _listed(devices: Devices) -> list[torch.device]:
    if devices is None:
        return _in_use()
    require("a clock", Devices, devices=devices)
    each = [devices] if isinstance(devices, (str, torch.device)) else devices
    return [_parsed(one) for one in each]


def _parsed(one: torch.device | str) -> torch.device:
    found = naming().parse(one)
    return found if isinstance(found, torch.device) else torch.device(str(found))


def _in_use() -> list[torch.device]:
    """The virtual GPUs if there are any (of a virtual rank, its own), else the real ones that CUDA
    has been started on."""
    from ..torch_backend.machine.runtime import running

    virtual = running()
    if virtual is not None:
        return [device(i) for i in virtual.own_devices]
    if torch.cuda.is_initialized():
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return []


class Timer:
    """A stopwatch that keeps its laps: `times_s`, in seconds of the clock of `devices`."""

    def __init__(self, devices: Devices = None) -> None:
        self.devices = devices
        self.times_s: list[float] = []
        self.start()

    def start(self) -> None:
        """Begin a lap."""
        self._start_s = now_s(self.devices)

    def stop(self) -> float:
        """End the lap; returns its seconds."""
        self.times_s.append(now_s(self.devices) - self._start_s)
        return self.times_s[-1]

    @property
    def mean_s(self) -> float:
        """The mean lap; StatisticsError before the first has ended."""
        return statistics.fmean(self.times_s)

    @property
    def total_s(self) -> float:
        """All laps together."""
        return sum(self.times_s)


@dataclass(frozen=True)
class Measurement:
    """Repeated times of one thing: the median says how long, the spread (max - min) how sure."""

    times_s: tuple[float, ...]
    clock: str

    @property
    def median_s(self) -> float:
        """The middle one of the times."""
        return statistics.median(self.times_s)

    @property
    def spread_s(self) -> float:
        """From the shortest time to the longest."""
        return max(self.times_s) - min(self.times_s)

    def __str__(self) -> str:
        return f"{self.median_s:.4g} s ± {self.spread_s / 2:.1g} ({self.clock})"


@checked
def measure(
    work: Callable[[], object],
    *,
    repeats: Times = 5,
    warm_up: Annotated[int, whole(0, MOST_TIMES)] = 1,
    devices: Devices = None,
) -> Measurement:
    """Call `work()` `warm_up` times unseen and `repeats` times timed.

    Raises ValueError for fewer than one repeat, a negative warm-up, or a million of either.
    """
    for _ in range(warm_up):
        work()
    timer = Timer(devices)
    for _ in range(repeats):
        timer.start()
        work()
        timer.stop()
    return Measurement(tuple(timer.times_s), clock_name(devices))
