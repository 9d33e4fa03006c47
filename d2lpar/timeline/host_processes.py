"""Which process of the traced program a span belongs to, and which rank that process is.

A virtual rank's host threads are called "rank 1" and "rank 1, thread for cuda:1"; those of a
program of one process "main" and "thread for cuda:1". A device's work belongs to the process whose
host queued it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from .spans import Span

MAIN = "main"
_THREAD = "thread for "


class Launch(NamedTuple):
    """A dispatch that queued something: whose it was, on which host thread, and when."""

    process: str
    host_thread: int | str
    start_s: float
    end_s: float


class Owners:
    """Tells the process of each span, given them in the order in which a clock records them.

    There a dispatch comes before what it queued. It keeps dispatches until then.
    """

    def __init__(self) -> None:
        self._launches: dict[int, Launch] = {}
        self._of_device: dict[str, str] = {}
        self._seen: set[str] = set()

    def of(self, span: Span) -> tuple[str, Launch | None]:
        """The process of a span, and the dispatch that queued it if it is the first to be so."""
        if span.device == "host":
            process = process_of(span.stream)
            self._seen.add(process)
            if span.correlation:
                times = span.start_s, span.end_s
                self._launches[span.correlation] = Launch(process, span.stream, *times)
            return process, None
        launch = self._launches.pop(span.correlation, None)
        if launch is not None:
            self._of_device[span.device] = launch.process
        return self.of_device(span.device), launch

    def knows(self, device: str) -> bool:
        """Whether somebody has queued work on a device."""
        return device in self._of_device

    def of_device(self, device: str) -> str:
        """The process that last queued work on a device; where nobody has, the rank that has its
        number, as far as there are ranks."""
        return self._of_device.get(device) or self._rank_of_number(device)

    def _rank_of_number(self, device: str) -> str:
        rank = rank_name(device.rpartition(":")[2])
        return rank if rank in self._seen else MAIN


def process_of(host_thread: int | str) -> str:
    """The process that a host thread is of."""
    name = str(host_thread)
    if name.startswith(_THREAD):
        return MAIN
    return name.split(f", {_THREAD}")[0]


def rank_name(number: int | str) -> str:
    """What the process of a rank is called."""
    return f"rank {number}"


def rank_of(process: str) -> int | None:
    """The number of a process that is called "rank 3"; None for others."""
    found = re.fullmatch(r"rank (\d+)", process)
    return None if found is None else int(found[1])


def numbered(processes: Iterable[str]) -> dict[str, int]:
    """A number for each process: a rank's own, and for the others the first that are left."""
    known = {process: rank_of(process) for process in processes}
    taken = {number for number in known.values() if number is not None}
    numbers: dict[str, int] = {}
    for process, number in known.items():
        numbers[process] = _first_free(taken) if number is None else number
        taken.add(numbers[process])
    return numbers


def _first_free(taken: Collection[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)
