"""Signals, which the system gives to the main thread, and handlers, which each rank has its own.

Under `d2lpar run` a signal that comes is passed on to all ranks, as a terminal gives it to all
processes: each meets its handler, or KeyboardInterrupt, when it has its turn. A second SIGINT ends
them. Elsewhere handlers of ranks are accepted and not called.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ....timeline.printing import say
from ..world.rank import Rank, here

NOTE = (
    "a signal handler was set on a virtual rank: it is kept and never called, as ranks are threads "
    "of one process, which handles signals itself"
)
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
SAY_AFTER_S = 5.0
STILL_RUNS = "d2lpar: the program has heard of the interrupt and goes on: Ctrl-C once more ends it"
_theirs = signal.signal, signal.getsignal
_passed_on: dict[int, Any] = {}  # what the system called before, by signal


@contextmanager
def handlers_accepted() -> Iterator[None]:
    """Let ranks set and read handlers in the block, each its own."""
    theirs = signal.signal, signal.getsignal
    if getattr(theirs[0], "of_ranks", False):  # a virtual process that starts others
        yield
        return

    def set_handler(number: int, handler: Any) -> Any:
        rank = _rank()
        if rank is None:
            return theirs[0](number, handler)
        if number not in _passed_on and not any(other.handlers for other in rank.world.ranks):
            warnings.warn(NOTE, stacklevel=2)
        before = get_handler(number)
        rank.handlers[number] = handler
        return before

    def get_handler(number: int) -> Any:
        rank = _rank()
        own = {} if rank is None else rank.handlers
        return own[number] if number in own else _passed_on.get(number, theirs[1](number))

    set_handler.of_ranks = True  # type: ignore[attr-defined]
    _set(set_handler, get_handler)
    try:
        yield
    finally:
        _set(*theirs)


@contextmanager
def passed_on(hand: Callable[[int], bool], end: Callable[[], None]) -> Iterator[None]:
    """Let `hand(number)` give signals to ranks in the block; False: none of them takes it.

    At a second interrupt `end()` lets who waits for the ranks end them, at a third it is raised
    wherever the main thread is: that may break what it waits by. Only the
    main thread can; what the user has told the system to ignore stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process, interrupts = os.getpid(), [0]

    def heard(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a worker that a rank has forked
            _as_before(number, frame)
            return
        interrupts[0] += number == signal.SIGINT
        if number == signal.SIGINT and interrupts[0] > 2:
            raise KeyboardInterrupt
        if number == signal.SIGINT and interrupts[0] == 2:
            end()
        elif not hand(number):
            _as_before(number, frame)
        elif number == signal.SIGINT:
            reminder.start()

    reminder = threading.Timer(SAY_AFTER_S, say, (STILL_RUNS,), {"stream": sys.__stderr__})
    reminder.daemon = True
    try:
        for number in (getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)):
            before = _theirs[1](number)
            if before in (signal.SIG_DFL, signal.default_int_handler):
                _passed_on[number] = before
                _theirs[0](number, heard)
        yield
    finally:
        reminder.cancel()
        while _passed_on:
            _theirs[0](*_passed_on.popitem())


def is_taken(rank: Rank, number: int) -> bool:
    """Whether a rank does something of its own at a signal, if only to ignore it."""
    return number == signal.SIGINT or rank.handlers.get(number, signal.SIG_DFL) != signal.SIG_DFL


def meet(rank: Rank, number: int, frame: FrameType | None = None) -> None:
    """Call the handler of a rank, as the system would; raises what that raises."""
    handler = rank.handlers.get(number, signal.default_int_handler)
    if handler == signal.SIG_DFL:
        raise KeyboardInterrupt  # it would be the end of the process
    if callable(handler):  # signal.SIG_IGN is not
        handler(number, frame)


def _as_before(number: int, frame: FrameType | None) -> None:
    """What would have happened without ranks: an interrupt, or the end of the process."""
    before = _passed_on.get(number, signal.SIG_DFL)
    if callable(before):
        before(number, frame)
        return
    with suppress(ValueError):
        _theirs[0](number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _rank() -> Rank | None:
    return getattr(here, "rank", None)


def _set(set_handler: Callable[..., Any], get_handler: Callable[..., Any]) -> None:
    signal.signal, signal.getsignal = set_handler, get_handler
