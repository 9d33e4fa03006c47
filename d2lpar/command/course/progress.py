"""How far a student is in each lesson, in its deeper half, and in the museum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...checks.challenges import scores
from ...plots.widgets import progress

FOLDERS = ("", "deeper", "museum")
TEXT_NONE = "{copy} has no lesson: call `make update` first"


def described(copy: Path) -> str:
    """A line for each page of a student's copy that asks for something. Raises ValueError where
    there is none."""
    lines = sorted(_lines(copy))
    if not lines:
        raise ValueError(TEXT_NONE.format(copy=copy))
    return "\n".join(lines)


def _lines(copy: Path) -> Iterator[str]:
    for folder in (copy / name for name in FOLDERS):
        done = progress.done(folder) | scores.read(folder / scores.path()).keys()
        yield from (asked.progress(done) for asked in progress.asked_in(folder))
