"""How far the start of ranks has come: shown while it lasts, and then taken away again."""

from __future__ import annotations

import time

from ..passing_line import screen
from . import messages

STAGES = 2  # the controller and the process group; each engine is one more
_BAR = "{desc} |{bar:20}| {elapsed}"


class Progress:
    """A bar over the stages of a start, as a context manager: at its end nothing is left of it."""

    def __init__(self) -> None:
        self._screen = screen()
        self._began_s = time.monotonic()
        self._shown = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._screen is not None and self._shown:
            self._screen.clear()

    def controller(self, n: int) -> None:
        """The controller of `n` ranks is being started."""
        self._show(messages.STAGE_CONTROLLER, 0, n)

    def engines(self, came: int, n: int) -> None:
        """So many of `n` processes have come."""
        self._show(messages.STAGE_ENGINES.format(came=came, n=n), 1 + came, n)

    def group(self, n: int) -> None:
        """All `n` have come, and look for one another."""
        self._show(messages.STAGE_GROUP, 1 + n, n)

    def _show(self, stage: str, done: int, n: int) -> None:
        """Show `done` of `n` + 2 steps; cheap to call again and again for the time to go on."""
        if self._screen is None:
            return
        from tqdm import tqdm

        passed_s = int(time.monotonic() - self._began_s)
        heading = messages.STARTING.format(n=n, ranks="rank" if n == 1 else "ranks", stage=stage)
        line = tqdm.format_meter(
            done, n + STAGES, passed_s, ascii=" #", prefix=heading, bar_format=_BAR
        )
        if line != self._shown:
            self._screen.show(line)
            self._shown = line
