"""Grading the answer to a lesson's exercise, in the grader's process: see `checks.grader`."""

from __future__ import annotations

from collections.abc import Callable

from .by_name import exercises
from .grader import source
from .grader.answer import judged

MODULES = (*source.MODULES, "copy", "operator", "time")
# An answer to these starts programs, which no answer may do in the grader's process.
BY_HAND = ("mended",)


def grade(name: str, text: str) -> dict:
    """What came of an answer, as plain data: status, text, printed."""
    check = exercises()[name]

    def judge(answer: Callable) -> dict:
        verdict = check(answer)
        return {"status": verdict.status, "text": verdict.text}

    return judged(name, text, judge, modules=MODULES)
