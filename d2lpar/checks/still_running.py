"""A check that takes long says where it is: after ten seconds, and then every minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from sys import _current_frames  # documented

from ..processes.passing_line import Screen, screen
from ..vgpu.races.call_sites import call_site_of, mark_in

FIRST_S, EVERY_S = 10.0, 60.0
PATIENCE_S = 1.0  # for a line that is being shown
TEXT = "checking {name}: after {seconds:.0f} s {where}"
IN_ANSWER = "it is in your code: {places}"
IN_CHECK = "it is in the check's own part, which makes inputs and compares what came"


@contextmanager
def told(name: str) -> Iterator[None]:
    """Say now and then where the block is, which checks `name`, while somebody looks on."""
    shown = screen()
    if shown is None:
        yield
        return
    done = threading.Event()
    arguments = (name, threading.get_ident(), shown, done)
    thread = threading.Thread(target=_tell, args=arguments, name="still running", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(PATIENCE_S)


def _tell(name: str, checking: int, shown: Screen, done: threading.Event) -> None:
    begin_s, pause_s = time.perf_counter(), FIRST_S
    while not done.wait(pause_s):
        seconds = time.perf_counter() - begin_s
        shown.show(TEXT.format(name=name, seconds=seconds, where=where(checking)))
        pause_s = EVERY_S
    if pause_s == EVERY_S:
        shown.clear()


def where(checking: int) -> str:
    """Where the check is that runs in a thread: in which lines of the student's, if in any.

    The line that calls the check is none of the answer's. Ranks that a check has started are
    threads, too.
    """
    frames = _current_frames()
    ranks = {each.ident: each.name for each in threading.enumerate() if each.name[:5] == "rank "}
    places = []
    for thread, rank in {checking: "", **ranks}.items():
        marked = mark_in(frames.get(thread or 0))
        if marked is not None and marked[0].co_name != "<module>":
            site = call_site_of(marked)
            places.append(f"{rank and f'{rank} in '}{site} (`{site.source}`)")
    return IN_ANSWER.format(places=", ".join(places)) if places else IN_CHECK
