"""What can be said of a test, and how to say it of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

PASSED, FAILED, SKIPPED, CRASHED, HUNG = "passed", "failed", "skipped", "crashed", "hung"
NOT_APPLICABLE = "not applicable"
SLOW = "too slow"  # over the limit, with values that the processor computes
OUTCOMES = (PASSED, FAILED, CRASHED, HUNG, SLOW, NOT_APPLICABLE, SKIPPED)
GOAL = 0.95  # of the tests that apply


@dataclass
class Verdict:
    """The outcome of one test; `why` is its last line, `not_applicable` a reason of its text,
    `place` the statement of its file that has failed.

    `not_loaded` says why a whole file could not be imported; its tests are not known then.
    """

    file: str
    test: str
    outcome: str
    why: str = ""
    not_applicable: str | None = None
    seconds: float = 0.0
    traceback: str = ""
    place: str = ""

    @property
    def column(self) -> str:
        """Where it counts: what does not apply counts there, unless it crashed or hung."""
        if self.not_applicable and self.outcome in (PASSED, FAILED):
            return NOT_APPLICABLE
        return self.outcome


def counts(verdicts: Iterable[Verdict]) -> Counter[str]:
    """How many tests there are in each column."""
    return Counter(verdict.column for verdict in verdicts)


def applicable(numbers: Counter[str]) -> int:
    """How many tests apply: those that passed, failed, crashed, hung or took too long."""
    return sum(numbers[column] for column in (PASSED, FAILED, CRASHED, HUNG, SLOW))


def rate(numbers: Counter[str]) -> float | None:
    """The share that passed of those that apply; None if there is none."""
    of = applicable(numbers)
    return numbers[PASSED] / of if of else None


def met(verdicts: Sequence[Verdict]) -> bool:
    """Whether the goal is met: enough of the applicable tests pass, none crashes, none hangs."""
    numbers = counts(verdicts)
    share = rate(numbers)
    return share is not None and share >= GOAL and not numbers[CRASHED] and not numbers[HUNG]


def table(verdicts: Sequence[Verdict], not_loaded: dict[str, str]) -> str:
    """A line for each file, one for all; then the reasons, and what failed with its last line."""
    files = list(dict.fromkeys(verdict.file for verdict in verdicts))
    width = max([len(file) for file in files] + [len("all")])
    heads = [*OUTCOMES, "rate"]
    lines = ["  ".join([" " * width, *heads])]
    lines += [_row(file, width, [v for v in verdicts if v.file == file]) for file in files]
    lines.append(_row("all", width, verdicts))
    lines += ["", f"goal: {GOAL:.0%} of the tests that apply; 0 crashed, 0 hung"]
    lines += _reasons(verdicts)
    lines += [f"not loaded: {file}: {why}" for file, why in not_loaded.items()]
    lines += ["", *(line(v) for v in verdicts if v.column in (FAILED, CRASHED, HUNG, SLOW))]
    return "\n".join(lines)


def _row(name: str, width: int, verdicts: Sequence[Verdict]) -> str:
    numbers = counts(verdicts)
    share = rate(numbers)
    cells = [f"{numbers[column]:{len(column)}d}" for column in OUTCOMES]
    return "  ".join([f"{name:{width}}", *cells, "-" if share is None else f"{share:.1%}"])


def _reasons(verdicts: Sequence[Verdict]) -> list[str]:
    """How often each reason was one, the most frequent first."""
    of_text = Counter(v.not_applicable for v in verdicts if v.column == NOT_APPLICABLE)
    of_tests = Counter(v.why for v in verdicts if v.column == SKIPPED)
    passed = sum(v.outcome == PASSED for v in verdicts if v.column == NOT_APPLICABLE)
    lines = [f"not applicable ({passed} of them pass all the same):"] if of_text else []
    lines += [f"  {number:4}  {reason}" for reason, number in of_text.most_common()]
    lines += ["skipped by the tests themselves:"] if of_tests else []
    return lines + [f"  {number:4}  {reason}" for reason, number in of_tests.most_common(20)]


def line(verdict: Verdict) -> str:
    """What became of one test, and its last line."""
    return f"{verdict.column}  {verdict.file}: {verdict.test}: {verdict.why}"


def as_json(verdicts: Sequence[Verdict], not_loaded: dict[str, str]) -> dict[str, object]:
    """The report: `rate`, `counts`, `goal_met`, `not_loaded` (file: why), and all `tests`."""
    numbers = counts(verdicts)
    tests = [{**asdict(verdict), "column": verdict.column} for verdict in verdicts]
    return {
        "rate": rate(numbers),
        "goal": GOAL,
        "goal_met": met(verdicts),
        "counts": {column: numbers[column] for column in OUTCOMES},
        "not_loaded": not_loaded,
        "tests": tests,
    }
