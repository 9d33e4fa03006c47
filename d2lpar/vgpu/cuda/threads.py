"""Threads that are started in the block see CUDA there, as the one does that entered it."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from . import state
from .patches import Patches


def install(patches: Patches, mode: AbstractContextManager) -> None:
    theirs = threading.Thread.start

    def start(self: threading.Thread) -> None:
        work = self.run

        def run() -> None:
            if not state.device_count():
                return work()
            with mode:
                return work()

        self.run = run
        theirs(self)

    patches.replace(threading.Thread, "start", start)
