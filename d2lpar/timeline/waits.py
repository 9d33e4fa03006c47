"""Waits for others, which have limits: for a lock that another process holds, for what is sent.

Who waits hears of whom after `SAY_AFTER_S` seconds; beyond a limit there is a TimeoutError.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from .printing import say

T = TypeVar("T")
SAY_AFTER_S = 5.0
LOCK_S = 120.0
ERROR_LOCK = (
    "{lock} is held by {holder}, still after {limit_s:g} s: end that process if it hangs, and try "
    "again"
)


@contextlib.contextmanager
def locked(lock: Path, *, limit_s: float | None = None) -> Iterator[None]:
    """Hold a lock that one process has at a time; its folder is there, or is made.

    Waits `limit_s` seconds at most, by default `LOCK_S`; raises TimeoutError then, and OSError
    where no file can be made. The lock of a process that has died is free.
    """
    from filelock import FileLock, Timeout

    limit_s = LOCK_S if limit_s is None else limit_s
    lock.parent.mkdir(parents=True, exist_ok=True)
    # The holder's number is where a link leads to: who waits empties the file of the lock itself.
    held, holder = FileLock(lock), lock.with_name(lock.name + ".holder")
    say_after_s = min(SAY_AFTER_S, limit_s)
    try:
        held.acquire(timeout=say_after_s)
    except Timeout:
        say(f"d2lpar: waiting for {lock}, held by {_told(holder)}", stream=sys.stderr, flush=True)
        try:
            held.acquire(timeout=limit_s - say_after_s)
        except Timeout:
            text = ERROR_LOCK.format(lock=lock, holder=_told(holder), limit_s=limit_s)
            raise TimeoutError(text) from None
    try:
        since = datetime.datetime.now().astimezone().isoformat(" ", timespec="seconds")
        with contextlib.suppress(OSError, NotImplementedError):
            holder.unlink(missing_ok=True)  # of a process that was killed
            holder.symlink_to(f"process {os.getpid()} since {since}")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        held.release()


def _told(holder: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return os.readlink(holder)
    return "another process"


def while_it_goes_on(
    function: Callable[[], T], went_on: Callable[[], bool], *, every_s: float
) -> T:
    """What `function()` returns or raises; `went_on()` is asked every so many seconds.

    Raises TimeoutError as soon as it says no; the function is left to itself then, in its thread.
    """
    over = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    threading.Thread(target=call, daemon=True).start()
    while not over.wait(every_s):
        if not went_on():
            raise TimeoutError(f"nothing, or hardly anything, has come for {every_s:g} s")
    if errors:
        raise errors.pop()  # which nothing here keeps: it holds open connections
    return results[0]
