"""How far the start of ranks has come: shown while it lasts, and then taken away again."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from . import messages

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

STAGES = 2  # the controller and the process group; each engine is one more
_BAR = "{desc} |{bar:20}| {elapsed}"


class Screen(Protocol):
    """Where one line can be shown, replaced, and removed."""

    def show(self, line: str) -> None:
        """Show a line in place of the one before."""

    def clear(self) -> None:
        """Take away what is shown."""


class Progress:
    """A bar over the stages of a start, as a context manager: at its end nothing is left of it.

    On a terminal it is on stderr. In a notebook it is an output of the cell while somebody looks
    on; a program that runs the notebook, to store or to compare its outputs, does not get it.
    """

    def __init__(self) -> None:
        self._screen = _screen()
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


def _screen() -> Screen | None:
    if sys.stderr is not None and sys.stderr.isatty():
        return _Terminal()
    return _Output() if _is_watched() else None


def _is_watched() -> bool:
    """Whether the running cell belongs to a front end: those name it, nbclient and nbval do not."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    request: dict = getattr(get_ipython(), "get_parent", dict)() or {}
    return "cellId" in request.get("metadata", {})


class _Terminal:
    """The last line of a terminal."""

    def __init__(self) -> None:
        self._length = 0

    def show(self, line: str) -> None:
        import shutil

        line = line[: shutil.get_terminal_size().columns - 1]  # a second line would stay
        sys.stderr.write("\r" + line.ljust(self._length))
        sys.stderr.flush()
        self._length = len(line)

    def clear(self) -> None:
        self.show("")
        sys.stderr.write("\r")
        sys.stderr.flush()


class _Output:
    """An output of the running cell, replaced in place and empty at last."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None

    def show(self, line: str) -> None:
        from IPython.display import DisplayHandle

        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display({"text/plain": line}, raw=True)
        else:
            self._handle.update({"text/plain": line}, raw=True)

    def clear(self) -> None:
        assert self._handle is not None  # a line is shown
        self._handle.update({}, raw=True)
