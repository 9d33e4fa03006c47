"""A line now and then while a program runs: real seconds, simulated ones, steps."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...timeline.printing import say

FIRST_S, MOST_S = 5.0, 60.0  # before the first line, and between two; each takes twice as long


@contextmanager
def progress(line: Callable[[float], str], *, shown: bool = True) -> Iterator[None]:
    """Print `line(seconds)` on stderr from time to time while the block runs."""
    done = threading.Event()
    thread = threading.Thread(target=_report, args=(line, done), name="progress", daemon=True)
    if shown:
        thread.start()
    try:
        yield
    finally:
        done.set()


def _report(line: Callable[[float], str], done: threading.Event) -> None:
    begin_s, pause_s = time.perf_counter(), FIRST_S
    while not done.wait(pause_s):
        pause_s = min(2 * pause_s, MOST_S)
        text = line(time.perf_counter() - begin_s)
        say(text, stream=sys.__stderr__, flush=True)
