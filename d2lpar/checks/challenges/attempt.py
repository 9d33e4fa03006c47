"""An attempt at a puzzle: what a student calls, and what is shown."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...locale import translated
from ...plots import Picture
from ...timeline.formatting import table
from ...timeline.printing import say
from .. import pictures, verdict
from ..grader import CLIENT, source
from ..verdict import NOT_YET, RIGHT, TEXT_NOT_YET
from . import scores
from .puzzle import LEVELS, OVER, number
from .puzzles import COUNTED, PLACES, PUZZLES

GRADING = f"{__package__}.grading"
SHOWN = verdict.SHOWN | {source.REFUSED: "⊘ refused: {text}", OVER: "◐ {text}"}
PAR_RUNS = Path(__file__).with_name("par_runs.json")
LABELS = ("", "challenge", "level", "points", "yours", "limit", "par", "record", "unit")
TEXT_POINTS = "{points} of 100 points"
TEXT_REPEATED = "Cases that you have asked for by their seed are for looking, and nothing is kept"
TEXT_KEPT = "Your best so far, kept in {path}"
TEXT_NOT_KEPT = "It could not be kept in {path}: {error}"
TEXT_BETTER = "You have had {points}"
TEXT_PRINTED = "your function printed:\n{printed}"
TEXT_RECORD = "A new record! The best that we knew was {record:.3g}. Send it in."
ERROR_TYPE = "challenge takes the function itself, not {got!r}: challenge(my_function)"
ERROR_SEED = "a seed is a whole number, not {got!r}"
ERROR_NAME = "no challenge has a function named {name!r}; did you mean {nearest!r}?"


@dataclass(frozen=True)
class Attempt:
    """What came of an attempt: `status` is "right", "right, but over the limit", "wrong",
    "refused", "not attempted yet", or "not graded", by no fault of the answer's.

    `figure` and `points` are those of a right answer, `seed` is what its cases were drawn from.
    Shown in a notebook it draws the run, beside par's where there is one.
    """

    name: str
    status: str
    text: str
    figure: float | None = None
    points: int = 0
    picture: Picture | None = None
    printed: str = ""
    seed: int | None = None

    def __bool__(self) -> bool:
        return self.status == RIGHT

    def __repr__(self) -> str:
        return translated(SHOWN[self.status].format(text=self.text))

    def _ipython_display_(self) -> None:
        if self.printed:
            say(TEXT_PRINTED.format(printed=self.printed.rstrip()))
        say(repr(self))
        if self.picture is not None:
            self.picture._ipython_display_()


def challenge(answer: Callable, seed: int | None = None) -> Attempt:
    """Grade the answer to a puzzle: a function with the puzzle's name, written in one cell.

    It runs in a process of the grader's, on machines of the grader's, and sees only its own cell.
    Its cases are drawn anew each time; those of a `seed`, which a verdict names, can be had again,
    to look at, for no points. A right answer's points go into the file of scores, if they are the
    best so far. Raises TypeError for what is no function and no seed, ValueError for a function of
    another name or without a source.
    """
    name = getattr(answer, "__name__", None)
    if not callable(answer) or name is None or not hasattr(answer, "__code__"):
        raise TypeError(ERROR_TYPE.format(got=answer))
    if name not in PUZZLES:
        nearest = difflib.get_close_matches(name, PUZZLES, n=1, cutoff=0)[0]
        raise ValueError(ERROR_NAME.format(name=name, nearest=nearest))
    if seed is not None and not verdict.is_whole(seed):
        raise TypeError(ERROR_SEED.format(got=seed))
    return challenge_source(name, source.source_of(answer), seed=seed)


def challenge_source(
    name: str, text: str, *, keeps: bool = True, seed: int | None = None, **limits: float
) -> Attempt:
    """Grade the source of an answer; `keeps`: a right one may go into the file of scores."""
    try:
        if source.is_stub(text, name):
            return Attempt(name, NOT_YET, TEXT_NOT_YET)
    except source.Refused as error:
        return Attempt(name, source.REFUSED, str(error))
    drawn = {} if seed is None else {"seed": int(seed)}
    report = CLIENT.grade(GRADING, name, text, **limits, **drawn)  # type: ignore[arg-type]
    said, points = [report["text"]], report.get("points", 0)
    counts = report["status"] == RIGHT and not (PUZZLES[name].example or report.get("own"))
    if counts:
        said.append(TEXT_POINTS.format(points=points))
        if PUZZLES[name].is_new_record(report["figure"]):
            said.append(TEXT_RECORD.format(record=PUZZLES[name].record))
        if drawn:
            said.append(TEXT_REPEATED)
        elif keeps:
            said.append(_kept(name, report, text))
    good = report.get("beside") or par_runs().get(name)
    picture = pictures.beside(report.get("picture") or {}, good, name)
    return Attempt(
        name,
        report["status"],
        ". ".join(said),
        report.get("figure"),
        points,
        picture,
        report.get("printed", ""),
        report.get("seed"),
    )


def _kept(name: str, report: dict, text: str) -> str:
    try:
        is_best = scores.keep(name, report, own_part(text, name))
    except OSError as error:
        return TEXT_NOT_KEPT.format(path=scores.path().as_posix(), error=error)
    if is_best:
        return TEXT_KEPT.format(path=scores.path().as_posix())
    return TEXT_BETTER.format(points=scores.read(scores.path())[name]["points"])


def own_part(text: str, name: str) -> str:
    """The source without the call of the grader and other cells' leftovers."""
    parts = re.split(r"\n\n\n+", source.graded_part(text, name).strip("\n"))
    return "\n\n\n".join(parts)


def score_table() -> str:
    """All puzzles and the points of each, as text to print."""
    kept = scores.read(scores.path())
    rows: list[tuple[str, ...]] = [LABELS]
    for place, puzzle in zip(PLACES, COUNTED, strict=True):
        entry = kept.get(puzzle.name)
        points, figure = ("", "") if entry is None else (entry["points"], number(entry["figure"]))
        rows.append(
            (
                place,
                puzzle.name,
                LEVELS[puzzle.level],
                str(points),
                figure,
                number(puzzle.limit),
                number(puzzle.par),
                number(puzzle.record),
                puzzle.unit,
            )
        )
    total = sum(kept[puzzle.name]["points"] for puzzle in COUNTED if puzzle.name in kept)
    return "\n".join([*table(rows), f"{total} of {100 * len(COUNTED)} points"])


@cache
def par_runs() -> dict[str, dict]:
    """The runs of par, which `tools/challenges.py` has recorded."""
    return json.loads(PAR_RUNS.read_text(encoding="utf-8")) if PAR_RUNS.exists() else {}
