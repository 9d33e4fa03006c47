"""The number that a rank has as a process: that of its thread, which to Linux is one of its own.

A program names files by it, seeds by it and tells its processes apart by it, and to the system all
ranks are one process. Linux numbers threads together with processes: what asks it for the process
of a thread's number (`kill`, `/proc`, psutil, affinity, limits) gets that of the thread. So only
the program's own code reads it; libraries, which look after real processes, read the real one.
Elsewhere threads have no such numbers, and ranks that of the process.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FrameType

from ...races.user_code import is_user_frame
from ..world.rank import Rank, here

# What reads it for its caller: module and function.
_ON_BEHALF = {
    ("logging", "__init__"),
    ("multiprocessing.process", "ident"),
    ("torch.profiler.profiler", "handler_fn"),  # the name of a trace for TensorBoard
}

_process = os.getpid  # the system's, whoever has been put in its place


_carried = threading.local()  # .number: in a thread that a rank has started


def number() -> int:
    """That of the process, or of the virtual rank whose thread this is, or which has started it."""
    if _has_own():
        return threading.get_native_id()
    carried: tuple[int, int] | None = getattr(_carried, "number", None)
    return carried[0] if carried is not None and carried[1] == _process() else _process()


def carry(started_by: int) -> None:
    """Let this thread have the number of the rank that has started it."""
    _carried.number = started_by, _process()  # which a fork of this thread is no longer


def is_own(pid: int) -> bool:
    """Whether this thread's program may call itself so."""
    return pid in (number(), _process())


def by_rank() -> list[tuple[str, Callable[[], int]]]:
    """Functions of `os` that give the program's own code the numbers of its rank and, as its
    parent's, of the process that has started all of them."""
    return [
        ("getpid", _for_user(os.getpid, number)),
        ("getppid", _for_user(os.getppid, _parent(os.getppid))),
    ]


def _has_own() -> bool:
    rank: Rank | None = getattr(here, "rank", None)
    return sys.platform == "linux" and rank is not None and len(rank.world.ranks) > 1


def _parent(theirs: Callable[[], int]) -> Callable[[], int]:
    """That of a process that a rank has forked, such as a loader's worker, is the system's."""
    return lambda: theirs() if number() == _process() else _process()


def _for_user(theirs: Callable[[], int], ours: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(theirs)
    def choose() -> int:
        return (ours if _is_for_user(_getframe(1)) else theirs)()

    return choose


def _is_for_user(frame: FrameType) -> bool:
    caller = frame.f_globals.get("__name__"), frame.f_code.co_name
    return caller in _ON_BEHALF or is_user_frame(frame)
