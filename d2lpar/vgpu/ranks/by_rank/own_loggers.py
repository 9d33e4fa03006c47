"""Loggers as each process has them: their handlers, filters and levels.

Python's loggers are shared by all threads, ranks among them. Here, what a rank sets of one counts
for that rank and the threads that it starts; it begins with what they were before there were ranks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..world.rank import Loggers, Rank, here

# What processes have of their own, and how one gets a value of its own from another's.
OF_LOGGERS: dict[str, Callable[[Any], Any]] = {
    "handlers": list,
    "filters": list,
    "_cache": lambda found: {},  # of what is enabled
    "level": lambda found: found,
    "propagate": lambda found: found,
    "disabled": lambda found: found,
}
OF_MANAGERS: dict[str, Callable[[Any], Any]] = {"_disable": lambda found: found}


class OfRank:
    """An attribute of a logger that has a value on each rank."""

    def __init__(self, name: str, own: Callable[[Any], Any]) -> None:
        self._name, self._own = name, own

    def __get__(self, logger: Any, owner: type) -> Any:
        if logger is None:
            return self
        rank = _rank()
        if rank is None:
            return vars(logger)[self._name]
        values = rank.loggers.setdefault(logger, {})
        if self._name not in values:
            values[self._name] = self._own(vars(logger)[self._name])
        return values[self._name]

    def __set__(self, logger: Any, value: object) -> None:
        rank = _rank()
        if rank is None:
            vars(logger)[self._name] = value
            return
        if self._name not in vars(logger):  # it is being made, for other ranks as well
            vars(logger)[self._name] = self._own(value)
        rank.loggers.setdefault(logger, {})[self._name] = value


@contextmanager
def loggers_by_rank() -> Iterator[None]:
    """Let ranks have loggers of their own in the block."""
    if "handlers" in vars(logging.Logger):  # a virtual process that starts others
        yield
        return
    of_kinds = ((logging.Logger, OF_LOGGERS), (logging.Manager, OF_MANAGERS))
    for kind, attributes in of_kinds:
        for name, own in attributes.items():
            setattr(kind, name, OfRank(name, own))
    theirs = threading.Thread.start
    threading.Thread.start = _start_with(theirs)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        threading.Thread.start = theirs  # type: ignore[method-assign]
        for kind, attributes in of_kinds:
            for name in attributes:
                delattr(kind, name)


def _start_with(theirs: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """`Thread.start`, for threads that know which rank has started them."""

    def start(thread: threading.Thread) -> None:
        rank, work = _rank(), thread.run

        def run() -> None:
            here.started_by = rank
            work()

        if rank is not None:
            thread.run = run  # type: ignore[method-assign]
        theirs(thread)

    return start


def of_this_process() -> Loggers:
    """A copy of what this rank has set, for a process that is forked from it."""
    rank = _rank()
    found = {} if rank is None else rank.loggers
    own = {**OF_LOGGERS, **OF_MANAGERS}
    return {
        logger: {name: own[name](value) for name, value in values.items()}
        for logger, values in found.items()
    }


def take(loggers: Loggers) -> None:
    """Let this rank go on with these."""
    here.rank.loggers = loggers


def _rank() -> Rank | None:
    return getattr(here, "rank", None) or getattr(here, "started_by", None)
