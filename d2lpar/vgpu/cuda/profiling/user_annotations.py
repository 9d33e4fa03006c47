"""User annotations, of `record_function` and as ranges of NVTX: they are on timelines.

So they are in trace files, around what was queued in them, and in profiles. PyTorch's own are among
them, such as "Optimizer.step#AdamW.step".
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.autograd.profiler
import torch.cuda.nvtx

from ...patching import Patches
from ...sim.clock import HostThread
from ...torch_backend.machine.runtime import Runtime, running

Function: Any = torch.autograd.profiler.record_function


def install(patches: Patches) -> None:
    """Note annotations of `record_function`, and ranges and marks of `torch.cuda.nvtx`."""
    patches.replace(Function, "__enter__", _entering(Function.__enter__))
    patches.replace(Function, "__exit__", _leaving(Function.__exit__))
    for name, function in Ranges().functions().items():
        if hasattr(torch.cuda.nvtx, name):
            patches.replace(torch.cuda.nvtx, name, function)


class _Begun(NamedTuple):
    """An annotation that has begun, on a host thread of a machine; without one nothing is noted."""

    name: str
    rt: Runtime | None
    host_thread: HostThread | None
    begin_s: float

    def end(self) -> None:
        """Note it."""
        if self.rt is not None and self.host_thread is not None:
            self.rt.clock.annotate(self.host_thread, self.name, self.begin_s)


def _begin(name: str) -> _Begun:
    """One that begins now. To ask for the exact time would change it in a backward pass."""
    rt = running()
    if rt is None:  # as in the workers of a DataLoader
        return _Begun(name, None, None, 0.0)
    host_thread = rt.host_threads.seen(rt.current_device)
    return _Begun(name, rt, host_thread, rt.clock.moment(host_thread))


def _entering(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def __enter__(self: Any) -> object:  # noqa: N807
        self._begun = _begin(self.name)
        return theirs(self)

    return __enter__


def _leaving(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def __exit__(self: Any, *error: object) -> object:  # noqa: N807
        begun = self.__dict__.pop("_begun", None)
        if begun is not None:
            begun.end()
        return theirs(self, *error)

    return __exit__


class Ranges:
    """`torch.cuda.nvtx`: ranges that lie in each other, in each thread, and others by number."""

    def __init__(self) -> None:
        self._open = threading.local()
        self._started: dict[int, _Begun] = {}
        self._numbers = itertools.count(1)

    def functions(self) -> dict[str, Callable]:
        """What takes the place of the functions of `torch.cuda.nvtx`, by their names."""
        return {
            "range_push": self._push,
            "range_pop": self._pop,
            "range_start": self._start,
            "range_end": self._end,
            "mark": lambda msg: _begin(msg).end(),
            "range": self._range,
        }

    def _push(self, msg: str) -> int:
        """The depth of the new range, from 0 on, as NVTX counts."""
        ranges = self._open.__dict__.setdefault("ranges", [])
        ranges.append(_begin(msg))
        return len(ranges) - 1

    def _pop(self) -> int:
        """The depth of the range that ends; below 0 where none is open."""
        ranges = self._open.__dict__.get("ranges")
        if not ranges:
            return -1
        ranges.pop().end()
        return len(ranges)

    def _start(self, msg: str) -> int:
        number = next(self._numbers)
        self._started[number] = _begin(msg)
        return number

    def _end(self, range_id: int) -> None:
        begun = self._started.pop(range_id, None)
        if begun is not None:
            begun.end()

    @contextlib.contextmanager
    def _range(self, msg: str, *args: object, **kwargs: object) -> Iterator[None]:
        self._push(msg.format(*args, **kwargs))
        try:
            yield
        finally:
            self._pop()
