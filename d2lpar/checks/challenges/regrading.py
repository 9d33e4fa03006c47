"""Grading files of scores again, for an instructor: the answers count, not what the file says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..verdict import NOT_GRADED
from . import scores
from .attempt import challenge_source
from .puzzles import PUZZLES


@dataclass(frozen=True)
class Regraded:
    """An entry of a file: the points that it claims, and those that its answer has now; None if it
    could not be graded, by no fault of its own."""

    file: str
    name: str
    claimed: int
    points: int | None
    text: str

    @property
    def agrees(self) -> bool:
        """Whether the claim was true."""
        return self.claimed == self.points


def regrade(files: Iterable[str | os.PathLike[str]]) -> list[Regraded]:
    """Run the answers in files of scores anew. Raises ValueError for a file that is none."""
    found = []
    for file in map(Path, files):
        for name, entry in scores.read(file).items():
            if name not in PUZZLES:
                continue
            attempt = challenge_source(name, str(entry.get("source", "")), keeps=False)
            claimed = int(entry.get("points", 0))
            points = None if attempt.status == NOT_GRADED else attempt.points
            found.append(Regraded(str(file), name, claimed, points, repr(attempt)))
    return found
