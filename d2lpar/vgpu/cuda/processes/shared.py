"""What virtual processes share to talk to one another: the common part of locks, pipes, queues.

Virtual processes take turns, so what waits for another one gives the turn away. The program that
has started them goes on when all have ended; when it waits itself, they run.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ranks.launcher import host_time_s, not_before, wait_in_turn
from ...ranks.state.pickled_copy import PickledCopy
from ...torch_backend.machine.runtime import current_runtime


class Shared:
    """Something that virtual processes share: it is not copied when it is handed from one to
    another. `run_children` lets processes run that wait for their turn."""

    def __init__(self, run_children: Callable[[], None]) -> None:
        self._run_children = run_children

    def wait_until(
        self,
        ready: Callable[[], bool],
        text: str,
        *,
        block: bool = True,
        timeout: float | None = None,
    ) -> bool:
        """Let others go on until `ready()`; once round without `block` or with a `timeout`, which
        takes its simulated time if it runs out. Whether it is ready.

        RuntimeError if it waits for ever: in a virtual process, when no other can go on; in the
        program that has started them, when all have ended.
        """
        if ready():
            return True
        forever = block and timeout is None
        if not wait_in_turn(ready if forever else lambda: True, text, forever):
            self._run_children()
        if not ready() and forever:
            raise RuntimeError(
                f"{text} waits for ever: no process is left that could end that. Processes that a "
                "program starts run when it waits for them, to their ends, so it cannot take "
                "turns with them; they can with each other"
            )
        if not ready() and block and timeout:
            current_runtime().host_work(timeout, text)
        return ready()


class Parcel:
    """A copy of what one process gives another, with the time at which it does."""

    def __init__(self, item: object) -> None:
        self._packed = PickledCopy(item, [Shared])
        self._sent_s = host_time_s()

    def open(self) -> object:
        """What is in it; whoever takes it does so later than it was given."""
        not_before(self._sent_s)
        return self._packed.load()
