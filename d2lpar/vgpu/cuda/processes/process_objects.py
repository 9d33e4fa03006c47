"""What `multiprocessing.current_process()` gives: each virtual process has an object of its own."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "_current_process"  # where multiprocessing keeps it


class CurrentProcess:
    """The object of one virtual process, exchanged when another one goes on."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self._process = process

    def save(self) -> None:
        """Keep that of the running process."""
        self._process = multiprocessing.current_process()

    def restore(self) -> None:
        """Let the running process have it."""
        become(self._process)


def become(process: multiprocessing.process.BaseProcess) -> None:
    """Let the running process be this one."""
    vars(multiprocessing.process)[NAME] = process


@contextmanager
def kept() -> Iterator[None]:
    """After the block, the process is the one that it was before."""
    before = multiprocessing.current_process()
    try:
        yield
    finally:
        become(before)
