"""Grading the answer to a puzzle, in the judge's process: see `checks.grader`."""

from __future__ import annotations

import secrets

from ...trials.calling import Called
from ...trials.confinement import Limits
from ..grader.judging import judged
from ..verdict import RIGHT, WRONG, Over, Wrong
from . import copies
from .evidence import picture
from .puzzle import OVER, Outcome, Puzzle
from .puzzles import PUZZLES

SEEDS = 1_000_000
TEXT_LIMIT = "right, but {figure} is over the limit"
TEXT_OVER = "right, but {what}"
TEXT_OWN = (
    "{text}. But this is a solution of the course's, perhaps with other names: it earns no points, "
    "which are for yours"
)
TEXT_SEED = "{text} (its cases are those of seed={seed})"
TEXT_EXAMPLE = "This one is the example, and earns no points"


def grade(name: str, text: str, limits: Limits, seed: int | None = None) -> dict:
    """What came of an answer, as plain data.

    Status, text, printed, figure, points, `worth` (the points that the figure is worth, whosever
    it is), picture, and the seed that its cases were drawn from.
    """
    puzzle = PUZZLES[name]
    seed = secrets.randbelow(SEEDS) if seed is None else seed
    report = judged(
        name,
        text,
        lambda answer: _judged(puzzle, answer, seed),
        limits,
        on_clock=puzzle.on_clock,
        refuses=puzzle.refuses,
        trial=puzzle.trial,
    )
    if report["status"] == RIGHT and not puzzle.one_way and copies.is_own(text, name):
        report |= {"points": 0, "text": TEXT_OWN.format(text=report["text"]), "own": True}
    if report["status"] in (WRONG, OVER):
        report["text"] = TEXT_SEED.format(text=report["text"], seed=seed)
    return report | {"seed": seed}


def _judged(puzzle: Puzzle, answer: Called, seed: int) -> dict:
    try:
        return _within_limit(puzzle, puzzle.judge(answer, seed))
    except Over as over:
        text = TEXT_OVER.format(what=over)
        return {"status": OVER, "text": text, "picture": over.picture or _seen(answer)}
    except Wrong as wrong:
        found = wrong.picture or _seen(answer)
        return {"status": WRONG, "text": str(wrong), "picture": found}


def _seen(answer: Called) -> dict:
    """What the answer's own process has drawn of its last run."""
    return picture(answer.picture, str(answer.picture.get("clock", ""))[:80])


def _within_limit(puzzle: Puzzle, outcome: Outcome) -> dict:
    said = puzzle.in_words(outcome.figure)
    pictures = {"picture": outcome.picture, "beside": outcome.beside}
    if not puzzle.allows(outcome.figure):
        return {"status": OVER, "text": TEXT_LIMIT.format(figure=said), **pictures}
    text = f"{said}: {outcome.praise}" if puzzle.limit > puzzle.record else outcome.praise
    worth = puzzle.points(outcome.figure)
    return {
        "status": RIGHT,
        "text": f"{text}. {TEXT_EXAMPLE}" if puzzle.example else text,
        "figure": outcome.figure,
        "points": 0 if puzzle.example else worth,
        "worth": worth,
        **pictures,
    }
