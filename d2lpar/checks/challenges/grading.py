"""Grading the answer to a puzzle, in the judge's process: see `checks.grader`."""

from __future__ import annotations

from ...trials.confinement import Limits
from ..grader.judging import judged
from ..verdict import RIGHT, WRONG
from .puzzle import Outcome, Puzzle
from .puzzles import PUZZLES

TEXT_LIMIT = "right, but {figure} is over the limit"


def grade(name: str, text: str, limits: Limits) -> dict:
    """What came of an answer, as plain data: status, text, figure, points, picture, printed."""
    puzzle = PUZZLES[name]
    return judged(
        name,
        text,
        lambda answer: _within_limit(puzzle, puzzle.judge(answer)),
        limits,
        on_clock=puzzle.on_clock,
        refuses=puzzle.refuses,
        trial=puzzle.trial,
    )


def _within_limit(puzzle: Puzzle, outcome: Outcome) -> dict:
    said = puzzle.in_words(outcome.figure)
    if not outcome.figure <= puzzle.limit * (1 + 1e-9):
        text = TEXT_LIMIT.format(figure=said)
        return {"status": WRONG, "text": text, "picture": outcome.picture}
    return {
        "status": RIGHT,
        "text": f"{said}: {outcome.praise}" if puzzle.limit > puzzle.record else outcome.praise,
        "figure": outcome.figure,
        "points": puzzle.points(outcome.figure),
        "picture": outcome.picture,
    }
