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
    lines = dict(_lines(copy))
    if not lines:
        raise ValueError(TEXT_NONE.format(copy=copy))
    lesson_first = sorted(lines, key=lambda label: label.split(","))
    return "\n".join(lines[label] for label in lesson_first)


def _lines(copy: Path) -> Iterator[tuple[str, str]]:
    """What each page is called, and its line."""
    for folder in (copy / name for name in FOLDERS):
        done = progress.done(folder) | scores.read(folder / scores.path()).keys()
        yield from ((asked.label, asked.progress(done)) for asked in progress.asked_in(folder))
