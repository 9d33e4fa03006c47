"""A line now and then while a program runs: real seconds, simulated ones, steps.

It never shares a line with what the program prints: where that has begun one, such as a bar, or
numbers one after the other, ours waits until it is complete.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...timeline.printing import say

FIRST_S, MOST_S = 5.0, 60.0  # before the first line, and between two; each takes twice as long
PATIENCE_S = 1.0  # for another thread; one that was forked off may wait for nobody


@contextmanager
def progress(line: Callable[[float], str], *, shown: bool = True) -> Iterator[None]:
    """Print `line(seconds)` on stderr from time to time while the block runs."""
    if not shown:
        yield
        return
    done, screen = threading.Event(), _Screen()
    arguments = (line, done, screen)
    thread = threading.Thread(target=_report, args=arguments, name="progress", daemon=True)
    thread.start()
    try:
        with screen.watched():
            yield
    finally:
        done.set()
        thread.join(PATIENCE_S)  # what comes next begins in a line of its own


def _report(line: Callable[[float], str], done: threading.Event, screen: _Screen) -> None:
    begin_s, pause_s = time.perf_counter(), FIRST_S
    while not done.wait(pause_s):
        pause_s = min(2 * pause_s, MOST_S)
        screen.show(lambda: line(time.perf_counter() - begin_s))


class _Screen:
    """What stands in the last line of the place where stderr goes, be it a terminal or a file."""

    def __init__(self) -> None:
        self._line = ""
        self._due: Callable[[], str] | None = None
        self._lock = threading.RLock()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See what is written there in the block: by stderr, and by stdout if it goes there."""
        both = {sys.stderr, sys.stdout} if _go_to_one_place() else {sys.stderr}
        streams = both - {None}  # as in a process without a console
        for stream in streams:
            stream.write = self._noting(stream.write)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for stream in streams:
                vars(stream).pop("write", None)

    def _noting(self, theirs: Callable[[str], int]) -> Callable[[str], int]:
        def write(text: str) -> int:
            with _held(self._lock):
                self._note(text)
                written = theirs(text)
                self._show_what_is_due()
                return written

        return write

    def _note(self, text: str) -> None:
        self._line = (self._line + text).rpartition("\n")[2]
        first, *others = self._line.split("\r")
        for over in others:  # as a bar that is drawn anew, or wiped out by blanks
            first = over + first[len(over) :]
        self._line = first

    def show(self, text: Callable[[], str]) -> None:
        """Write a line: at once, or when the program has completed the one that it has begun."""
        with _held(self._lock):
            self._due = text
            self._show_what_is_due()

    def _show_what_is_due(self) -> None:
        text = self._due
        if text is None or self._line.strip():
            return
        self._due = None
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        over = "\r" if self._line else ""  # blanks, by which a bar has been wiped out
        self._line = ""
        say(over + text(), stream=sys.__stderr__, flush=True)


@contextmanager
def _held(lock: threading.RLock) -> Iterator[None]:
    held = lock.acquire(timeout=PATIENCE_S)
    try:
        yield
    finally:
        if held:
            lock.release()


def _go_to_one_place() -> bool:
    """Whether stdout and stderr do; yes if that cannot be told."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return True
