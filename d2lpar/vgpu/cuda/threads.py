"""Threads that are started in the block see CUDA there, as the one does that entered it; they begin
on the first device that their process sees."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from ..patching import Patches
from ..torch_backend.machine.runtime import current_runtime
from . import lazy_init


def install(patches: Patches, mode: AbstractContextManager) -> None:
    """Let threads that are started from now on run in `mode`, as long as the block lasts."""
    theirs = threading.Thread.start

    def start(self: threading.Thread) -> None:
        work, first = self.run, lazy_init.first_device()

        def run() -> None:
            if not lazy_init.emulated_count():
                return work()
            if first is not None:
                current_runtime().current_device = first
            with mode:
                return work()

        self.run = run  # type: ignore[method-assign]
        theirs(self)

    patches.replace(threading.Thread, "start", start)
