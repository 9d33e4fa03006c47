"""A line that is shown while something lasts, and of which nothing is left at the end.

On a terminal it is on stderr. In a notebook it is an output of the cell while somebody looks on; a
program that runs the notebook, to store or to compare its outputs, does not get it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from ..timeline.printing import is_watched

if TYPE_CHECKING:
    from IPython.display import DisplayHandle


class Screen(Protocol):
    """Where one line can be shown, replaced, and removed."""

    def show(self, line: str) -> None:
        """Show a line in place of the one before."""

    def clear(self) -> None:
        """Take away what is shown."""


def screen() -> Screen | None:
    """A terminal's last line, on stderr, or an output of the cell; None where nobody looks on."""
    if sys.stderr is not None and sys.stderr.isatty():
        return _Terminal()
    return _Output() if is_watched() else None


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
