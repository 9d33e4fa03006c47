"""Ending processes by their id, with all that they started."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable

import psutil

from .. import messages
from .lifeline import cleans_up

_GONE_S = 1  # how long a killed process may take to go
_OWN_PACE_S = 5  # the same for what cleans up when its parent is gone, on a busy machine


def is_running(process: psutil.Process) -> bool:
    """Whether it runs; one that ended, and that nobody has asked for its exit code, does not."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_stopped(process: psutil.Process | None) -> bool:
    """Whether a signal or a debugger has stopped it, so that it could go on."""
    with contextlib.suppress(psutil.Error):
        stopped = psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP
        return process is not None and process.status() in stopped
    return False


def end(processes: Iterable[psutil.Process]) -> None:
    """End the processes and their descendants at once; those that clean up are let to."""
    family = {one.pid: one for process in processes for one in _family(process)}
    trackers = [one for one in family.values() if cleans_up(one)]
    for one in family.values():
        if one not in trackers:
            _kill(one)
    _wait(list(family.values()), _OWN_PACE_S)
    for one in trackers:
        _kill(one)
    _wait(list(family.values()), _GONE_S)


def _family(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return [process]


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until they are gone, without taking the exit code of a child from its launcher."""
    deadline_s = time.monotonic() + seconds
    while any(map(is_running, processes)) and time.monotonic() < deadline_s:
        time.sleep(0.01)


def describe_exit(code: int | None) -> str:
    """How a process ended, from its exit code (negative: by that signal), if that is known."""
    if code is None:
        return messages.UNKNOWN_EXIT
    if code >= 0:
        return messages.EXIT_CODE.format(code=int(code))
    name = "unknown"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
    return messages.SIGNAL.format(number=-int(code), name=name)
