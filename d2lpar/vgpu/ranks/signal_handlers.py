"""Signal handlers of ranks: accepted, and never called, for ranks are threads to the system."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .rank import Rank, here

NOTE = (
    "a signal handler was set on a virtual rank: it is kept and never called, as ranks are threads "
    "of one process, which handles signals itself"
)


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
        if not any(other.handlers for other in rank.world.ranks):
            warnings.warn(NOTE, stacklevel=2)
        before = get_handler(number)
        rank.handlers[number] = handler
        return before

    def get_handler(number: int) -> Any:
        rank = _rank()
        own = {} if rank is None else rank.handlers
        return own[number] if number in own else theirs[1](number)

    set_handler.of_ranks = True  # type: ignore[attr-defined]
    _set(set_handler, get_handler)
    try:
        yield
    finally:
        _set(*theirs)


def _rank() -> Rank | None:
    return getattr(here, "rank", None)


def _set(set_handler: Callable[..., Any], get_handler: Callable[..., Any]) -> None:
    signal.signal, signal.getsignal = set_handler, get_handler
