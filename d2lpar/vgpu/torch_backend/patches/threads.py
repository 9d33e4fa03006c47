"""Threads of torch's own that work on the virtual machine of the code that starts them."""

from __future__ import annotations

import contextvars
import threading


class SameMachineThread(threading.Thread):
    """A replica's thread: it works on the virtual machine of the code that started it."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._context = contextvars.copy_context()

    def run(self) -> None:
        self._context.run(super().run)
