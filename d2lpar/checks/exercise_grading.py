"""Grading the answer to a lesson's exercise, in the judge's process: see `checks.grader`."""

from __future__ import annotations

from ..trials.calling import Called
from ..trials.confinement import Limits
from .by_name import exercises
from .grader.judging import judged
from .verdict import ON_CLOCK

# An answer to these starts programs, which no answer may do.
BY_HAND = ("mended",)


def grade(name: str, text: str, limits: Limits) -> dict:
    """What came of an answer, as plain data: status, text, printed."""
    check = exercises()[name]

    def judge(answer: Called) -> dict:
        verdict = check(answer)
        return {"status": verdict.status, "text": verdict.text}

    return judged(name, text, judge, limits, on_clock=getattr(check, ON_CLOCK))
