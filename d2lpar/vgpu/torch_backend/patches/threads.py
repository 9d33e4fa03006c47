"""Threads of torch's own that work on the virtual machine of the code that starts them."""

from __future__ import annotations

import contextvars
import threading


class SameMachineThread(threading.Thread):
    """A replica's thread: it works on the virtual machine of the code that started it."""

    def start(self) -> None:
        """Begin in a copy of the context of the code that calls this."""
        self._of_starter = contextvars.copy_context()
        super().start()

    def run(self) -> None:
        """Do the work there."""
        self._of_starter.run(super().run)
