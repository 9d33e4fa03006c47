"""Clocks: what the user's code reads is simulated time; everybody else reads the real one.

A read does not wait for devices, as none does on CUDA. The simulated clock starts at zero with the
virtual machine, `time.time()` included.
"""

from __future__ import annotations

import operator
import time
import timeit
from collections.abc import Callable
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FrameType

from ..torch_backend.runtime import current_runtime
from . import lazy_init
from .patches import Patches
from ..races.user_code import is_user_frame

SECONDS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
LOOPS = 10  # of a statement that `%timeit` or `Timer.autorange` times

# Functions of libraries that read a clock for the user: module and name.
_ON_BEHALF = {("IPython.core.magics.execution", "time")}


def install(patches: Patches) -> None:
    """Replace the clocks of `time` and `timeit`, and `time.sleep`."""
    for name in SECONDS:
        _simulate(patches, name, _now_s)
        _simulate(patches, f"{name}_ns", _now_ns)
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


def _simulate(patches: Patches, name: str, ours: Callable) -> None:
    theirs = getattr(time, name)

    def choose(*args: object) -> object:
        frame = _getframe(2)  # this function's caller has another between, the stand-in
        return (ours if _is_for_user(frame) else theirs)(*args)

    patches.replace(time, name, choose)


def _is_for_user(frame: FrameType) -> bool:
    return is_user_frame(frame) or (
        (frame.f_globals.get("__name__"), frame.f_code.co_name) in _ON_BEHALF
    )


def _now_s() -> float:
    return current_runtime().now_s()


def _now_ns() -> int:
    return round(current_runtime().now_s() * 1e9)


def _sleep(seconds: float) -> None:
    current_runtime().host_work(seconds, "sleep")


def _autorange(timer: timeit.Timer, callback: Callable | None = None) -> tuple[int, float]:
    """No search for a number of repetitions that takes long enough: the clock is exact."""
    seconds = timer.timeit(LOOPS)
    if callback is not None:
        callback(LOOPS, seconds)
    return LOOPS, seconds


class SimulatedTimer:
    """`timeit.default_timer`, which times what users hand it.

    A library that looks for a number of repetitions that takes long enough would look forever if
    the statement takes no simulated time; RuntimeError ends that.
    """

    REPETITIONS = 1000

    def __init__(self, theirs: Callable[[], float]) -> None:
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
