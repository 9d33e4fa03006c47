"""Clocks: what the user's code reads is simulated time; everybody else reads the real one.

A read does not wait for devices, as none does on CUDA. The simulated clock starts at zero with the
virtual machine, `time.time()` included. Plain Python takes no simulated time, and so would a loop
that only waits for the clock to go on: who reads it again and again, with nothing simulated in
between, spends time on reading.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
import time
import timeit
from collections.abc import Callable
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FrameType
from typing import Any

from ...patching import Patches
from ...races.user_code import is_user_frame
from ...torch_backend.machine.runtime import current_runtime, has_forked
from .. import lazy_init

SECONDS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
FREE_READS = 100  # one after the other, with nothing simulated in between; more are a loop
READ_S = 1e-7  # assumed: what Python takes to read a clock
# A further read takes this share of what the loop has waited already: so a loop of a minute ends
# after 1,700 reads, at most so much late.
WAITED_SHARE = 0.01

LOOPS = 10  # of a statement that `%timeit` or `Timer.autorange` times

# Functions of libraries that read a clock for the user: module and name.
_ON_BEHALF = {("IPython.core.magics.execution", "time")}


def install(patches: Patches) -> None:
    """Replace the clocks of `time` and `timeit`, and `time.sleep`."""
    clock = PolledClock()
    for name in SECONDS:
        _simulate(patches, name, clock.now_s)
        _simulate(patches, f"{name}_ns", lambda: round(clock.now_s() * 1e9))
    _simulate(patches, "sleep", _sleep)
    stopwatch = SimulatedTimer(timeit.default_timer)
    for function in (timeit.Timer.__init__, timeit.timeit, timeit.repeat):
        defaults = tuple(
            stopwatch if value is timeit.default_timer else value
            for value in function.__defaults__ or ()
        )
        patches.set(function, "__defaults__", defaults)
    patches.set(timeit, "default_timer", stopwatch)
    patches.replace(timeit.Timer, "autorange", _autorange)
    if "torch.utils.benchmark" in sys.modules:  # it takes long to import
        timer = sys.modules["torch.utils.benchmark"].Timer
        for name in ("blocked_autorange", "adaptive_autorange"):
            patches.replace(timer, name, _in_few_runs(getattr(timer, name)))


def _simulate(patches: Patches, name: str, ours: Callable) -> None:
    theirs = getattr(time, name)

    def choose(*args: object) -> object:
        frame = _getframe(2)  # this function's caller has another between, the stand-in
        return (ours if _is_for_user(frame) and not has_forked() else theirs)(*args)

    patches.replace(time, name, choose)


def _is_for_user(frame: FrameType) -> bool:
    return is_user_frame(frame) or (
        (frame.f_globals.get("__name__"), frame.f_code.co_name) in _ON_BEHALF
    )


def _now_s() -> float:
    return current_runtime().now_s()


class PolledClock(threading.local):
    """The simulated clock, as each thread reads it: see the module's text."""

    def __init__(self) -> None:
        self._last_s, self._since_s, self._reads = -1.0, 0.0, 0

    def now_s(self) -> float:
        """Simulated seconds; later than the last read if there were many of them."""
        rt = current_runtime()
        now_s = rt.now_s()
        if now_s != self._last_s:
            self._last_s, self._since_s, self._reads = now_s, now_s, 0
            return now_s
        self._reads += 1
        if self._reads > FREE_READS:
            waited_s = now_s - self._since_s
            rt.host_work(max(READ_S, WAITED_SHARE * waited_s), "reading the clock")
            self._last_s = rt.now_s()
        return self._last_s


def _sleep(seconds: float) -> None:
    current_runtime().host_work(seconds, "sleep")


def _autorange(timer: timeit.Timer, callback: Callable | None = None) -> tuple[int, float]:
    """No search for a number of repetitions that takes long enough: the clock is exact."""
    seconds = timer.timeit(LOOPS)
    if callback is not None:
        callback(LOOPS, seconds)
    return LOOPS, seconds


def _in_few_runs(theirs: Callable) -> Callable:
    """`torch.utils.benchmark` repeats a statement for some time: the clock is exact, and so a few
    runs will do, unless the caller says for how long."""

    def autorange(timer: Any, *args: Any, **kwargs: Any) -> object:
        seconds = timer.timeit(1).mean
        if seconds and not args and "min_run_time" not in kwargs:
            kwargs["min_run_time"] = LOOPS * seconds
        return theirs(timer, *args, **kwargs)

    return autorange


class SimulatedTimer:
    """`timeit.default_timer`, which times what users hand it.

    A library that looks for a number of repetitions that takes long enough would look forever if
    the statement takes no simulated time; RuntimeError ends that.
    """

    REPETITIONS = 1000

    def __init__(self, theirs: Callable[[], float]) -> None:
        functools.update_wrapper(self, theirs)  # pytest-benchmark looks for it by its name
        self._theirs = theirs
        self._last: tuple[int, float] | None = None

    def __call__(self) -> float:
        """Seconds: simulated ones inside the block, real ones outside."""
        if not lazy_init.emulated_count():
            return self._theirs()
        now_s = _now_s()
        for frame in (_getframe(1), _getframe(2)):  # a library's timer may be between
            if frame.f_code.co_name == "inner" and "_it" in frame.f_locals:
                self._watch(operator.length_hint(frame.f_locals["_it"]), now_s)
        return now_s

    def _watch(self, number: int, now_s: float) -> None:
        """Note the reads before and after `number` repetitions (0 are left after them)."""
        if number == 0:
            return
        if self._last is not None and self._last[1] == now_s:
            before = self._last[0]
            if number > before >= self.REPETITIONS:
                self._last = None
                raise RuntimeError(
                    f"{before} repetitions of this statement take no simulated time: only work of "
                    "devices is simulated, and plain Python is not. Time it outside emulate_cuda, "
                    "or say how long it takes with d2lpar.host_work(seconds, name)."
                )
        self._last = (number, now_s)
