"""What ranks print, line by line: a line of one rank is not torn by what another one prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from .rank import here


class Writes(Protocol):
    """What takes text."""

    def write(self, text: str) -> int:
        """Take some."""


class LinesByRank:
    """A stream that passes on what ranks write when a line of theirs is complete.

    What other threads write goes through at once. Everything else is the stream's own.
    """

    def __init__(self, stream: Writes) -> None:
        self._stream = stream
        self._begun: dict[object, str] = {}

    def write(self, text: str) -> int:
        """Take some text, and pass on all complete lines of this rank."""
        rank = getattr(here, "rank", None)
        if rank is None:
            return self._stream.write(text)
        lines = self._begun.pop(rank, "") + text
        end = max(lines.rfind("\n"), lines.rfind("\r")) + 1
        if end < len(lines):
            self._begun[rank] = lines[end:]
        if end:
            self._stream.write(lines[:end])
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def finish(self) -> None:
        """Pass on what has no end of a line yet."""
        before = getattr(here, "rank", None)
        for rank, text in self._begun.items():
            here.rank = rank  # so that what is below knows whose it is
            self._stream.write(text)
        here.rank = before
        self._begun.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lines_by_rank(ranks: int) -> Iterator[None]:
    """Let several ranks print line by line in the block; one alone prints as it likes."""
    if ranks == 1:
        yield
        return
    before = sys.stdout, sys.stderr
    ours: list[Any] = [LinesByRank(stream) for stream in before]
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        if (sys.stdout, sys.stderr) == tuple(ours):
            sys.stdout, sys.stderr = before
        for stream in ours:
            stream.finish()
