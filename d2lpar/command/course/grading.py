"""Grading what was handed in: every answer in a process of its own, whatever the others do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...checks import exercise_grading
from ...checks.challenges import grading as challenge_grading
from ...checks.grader import CLIENT, GraderError
from ...checks.grader.source import Refused, is_stub
from ...checks.verdict import NOT_GRADED, NOT_YET, RIGHT, TEXT_NOT_YET, WRONG
from . import assignment, submission
from .assignment import EXERCISE, Question
from .submission import Answer, Submission

JUDGES = {EXERCISE: exercise_grading.__name__, assignment.CHALLENGE: challenge_grading.__name__}
MISSING, UNREADABLE = "missing", "unreadable"
TEXT_OTHER = "this is homework {lesson}"
# How verdicts name a line of the text that was run.
LINE = re.compile(r"^line (?P<first>\d+)(?= )|(?<= in )line (?P<last>\d+)(?= \(`|$)")
TEXT_GRADER = "the grader gave up on this answer, which may be right: {error}"
TEXT_UNREAD = "{text} (it may need what could not be read: {unread})"
ERROR_LESSON = (
    "which homework is it? The files name {found}; say it with --lesson 05, one homework at a time"
)


@dataclass(frozen=True)
class Result:
    """What came of one question of one submission.

    `status` is "right", "wrong", "refused", "not attempted yet", "missing" or "unreadable"; or "not
    graded", by a fault of the grader's or of the machine. `cells` are the numbers of those of which
    parts were run.
    """

    question: str
    status: str
    text: str
    points: int
    of: int
    cells: tuple[int, ...] = ()
    printed: str = ""


@dataclass(frozen=True)
class Graded:
    """All results of a submission."""

    path: Path
    results: tuple[Result, ...]

    @property
    def points(self) -> int:
        """The sum of the points of its answers."""
        return sum(result.points for result in self.results)

    @property
    def of(self) -> int:
        """The sum of the points that could be had."""
        return sum(result.of for result in self.results)


def read_all(paths: Sequence[Path]) -> list[Submission]:
    """The submissions in folders and files. Raises ValueError where there is none."""
    return [submission.read(path) for path in submission.files([*paths])]


def lesson_of(submissions: Sequence[Submission]) -> str:
    """The homework that the notebooks say they are. Raises ValueError if they do not agree."""
    found = Counter(each.lesson for each in submissions if each.lesson is not None)
    if len(found) != 1:
        raise ValueError(ERROR_LESSON.format(found=", ".join(sorted(found)) or "none"))
    return next(iter(found))


def of_homework(submissions: Sequence[Submission], lesson: str) -> list[Submission]:
    """The submissions, those that say they are of another homework with that as their problem."""
    return [
        each
        if each.problem or each.lesson in (None, lesson)
        else replace(each, problem=TEXT_OTHER.format(lesson=each.lesson))
        for each in submissions
    ]


def grade(
    submissions: Sequence[Submission],
    questions: Sequence[Question],
    *,
    limit_s: float,
    limit_bytes: int,
) -> Iterator[Graded]:
    """Grade one submission after the other; the limits are those of one answer."""
    try:
        for each in submissions:
            results = [_result(each, question, limit_s, limit_bytes) for question in questions]
            yield Graded(each.path, tuple(results))
    finally:
        CLIENT.close()


def lacks() -> list[str]:
    """What this machine does not have of the boundary around an answer."""
    try:
        return CLIENT.lacks()
    except GraderError as error:
        return [TEXT_GRADER.format(error=error)]


def _result(each: Submission, question: Question, limit_s: float, limit_bytes: int) -> Result:
    answer = each.answer(question.name)
    if answer.problem:
        status = UNREADABLE if each.problem else MISSING
        return Result(question.name, status, answer.problem, 0, question.points)
    report = _report(question, answer.text, limit_s, limit_bytes)
    right = report["status"] == RIGHT
    text = _as_student_sees_it(report["text"], answer)
    if answer.unread and not right:
        text = TEXT_UNREAD.format(text=text, unread=answer.unread)
    return Result(
        question.name,
        report["status"],
        text,
        min(report.get("points", question.points), question.points) if right else 0,
        question.points,
        answer.cells,
        report.get("printed", ""),
    )


def _as_student_sees_it(text: str, answer: Answer) -> str:
    """A verdict that names the line where the student finds it, not that of the text that ran."""

    def place(found: re.Match[str]) -> str:
        number = int(found["first"] or found["last"])
        return answer.places[number - 1] if number <= len(answer.places) else found[0]

    return LINE.sub(place, text)


def _report(question: Question, text: str, limit_s: float, limit_bytes: int) -> dict:
    try:
        if is_stub(text, question.name):
            return {"status": NOT_YET, "text": TEXT_NOT_YET}
        return CLIENT.grade(
            JUDGES[question.kind], question.name, text, limit_s=limit_s, limit_bytes=limit_bytes
        )
    except Refused as refused:  # the source of a file of scores may be no Python
        return {"status": WRONG, "text": str(refused)}
    except GraderError as error:
        return {"status": NOT_GRADED, "text": TEXT_GRADER.format(error=error)}
