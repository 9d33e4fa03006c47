"""Who is to blame when a call fails: the first culprit, never the victims."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass

from . import messages
from .wire import Failure, Part

_CELL = re.compile(r"ipykernel_\d+|<ipython-input")


class RankError(RuntimeError):
    """A rank raised or died. `rank` is the first that did, `traceback` the text of its traceback.

    `name` is the type of the exception that it raised, None if it died.
    """

    def __init__(
        self, message: str, rank: int, name: str | None, traceback: str, after: str
    ) -> None:
        super().__init__(message)
        self.rank, self.name, self.traceback = rank, name, traceback
        for note in (traceback, after):
            if note:
                self.add_note(note)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: what went wrong on the rank; how the call got there says little."""
        return [*self.__notes__[:-1], f"{type(self).__name__}: {self}", self.__notes__[-1]]


class RanksEndedError(RuntimeError):
    """Ranks that are used after they ended; the message says why they did."""


@dataclass(frozen=True)
class Death:
    """A rank that is gone, and what became of it. `time_s` is when the notebook noticed."""

    how: str
    time_s: float


Trouble = Failure | Death


def culprit(troubles: dict[int, Trouble]) -> int:
    """The rank that went wrong first; one that only lost the connection to others comes last.

    Of several with the same exception it is the lowest, so that every run names the same. It is
    also the same where each says its own number: "rank 0 has no data", "rank 1 has no data".
    """
    first = min(troubles, key=lambda rank: (_is_victim(troubles[rank]), troubles[rank].time_s))
    what = _kind(first, troubles[first])
    return next(rank for rank in sorted(troubles) if _kind(rank, troubles[rank]) == what)


def _kind(rank: int, trouble: Trouble) -> object:
    """Equal for the same exception of several ranks; every death is one of its own."""
    if isinstance(trouble, Death):
        return rank
    return trouble.name, re.sub(rf"(?i)(\brank\W*){rank}\b", r"\1", trouble.message)


def _is_victim(trouble: Trouble) -> bool:
    return isinstance(trouble, Failure) and trouble.lost_connection


def summary(rank: int, trouble: Trouble) -> str:
    """One sentence: who, and what."""
    if isinstance(trouble, Death):
        return messages.GONE.format(rank=rank, how=trouble.how)
    text = messages.RAISED if trouble.message else messages.RAISED_BARE
    return text.format(rank=rank, name=trouble.name, message=trouble.message)


def error(rank: int, trouble: Trouble, *, after: str) -> RankError:
    """What the notebook raises for it; `after` says what has become of the other ranks."""
    raised = trouble if isinstance(trouble, Failure) else None
    return RankError(
        summary(rank, trouble),
        rank,
        raised.name if raised else None,
        render(rank, raised.parts) if raised else "",
        after,
    )


def render(rank: int, parts: Iterable[Part]) -> str:
    """The traceback of a rank; the lines of a cell that it ran are known here."""
    lines = []
    for part in parts:
        for file, number, function, text in part.frames:
            text = text or linecache.getline(file, number).strip()
            where = messages.NOTEBOOK_CELL if _CELL.search(file) else f'"{file}"'
            inside = "" if function.startswith("<") else f", in {function}"
            lines.append(f"[rank {rank}] {where}, line {number}{inside}")
            lines += [f"[rank {rank}]     {text}"] if text else []
        lines += [f"[rank {rank}] {line}" for line in part.summary.splitlines()]
    return "\n".join(lines)
