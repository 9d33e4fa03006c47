"""How far predictions are from what was published: a table, medians, and the worst."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from .rows import Row

MEDIAN_GOAL = 0.10
MEDIAN_BOUND = 0.115  # what holds, and must go on holding
WORST_GOAL = 0.30


@dataclass(frozen=True)
class Prediction:
    """A row, and what the simulator makes of it, in the row's unit."""

    row: Row
    predicted: float

    @property
    def error(self) -> float:
        """Relative to the published figure, with sign: 0.1 is 10 % too high."""
        return self.predicted / self.row.published - 1

    @property
    def is_within_goal(self) -> bool:
        """Whether the error is at most the goal for the worst."""
        return abs(self.error) <= WORST_GOAL


@dataclass(frozen=True)
class Report:
    """Predictions; rows to which a constant was fitted count for nothing but are shown."""

    predictions: tuple[Prediction, ...]

    @property
    def tests(self) -> list[Prediction]:
        """Those of rows to which nothing was fitted."""
        return [p for p in self.predictions if not p.row.fitted]

    @property
    def misses(self) -> list[Prediction]:
        """Those further off than the goal for the worst, worst first."""
        far = [p for p in self.tests if not p.is_within_goal]
        return sorted(far, key=lambda p: -abs(p.error))

    @property
    def unexplained(self) -> list[Prediction]:
        """Misses whose row does not say why."""
        return [p for p in self.misses if not p.row.comment]

    @property
    def median_error(self) -> float:
        """The median of the errors without their signs; 0 if there is nothing to test."""
        return median(abs(p.error) for p in self.tests) if self.tests else 0.0

    @property
    def holds(self) -> bool:
        """Whether the median keeps its bound, and every row the goal or says why it does not."""
        return self.median_error <= MEDIAN_BOUND and not self.unexplained

    # --- as text ----------------------------------------------------------------------------

    def text(self) -> str:
        """The table, family by family, and what it comes to."""
        lines = [_line("", "predicted", "published", "error")]
        for workload in dict.fromkeys(p.row.workload for p in self.predictions):
            lines += ["", workload]
            lines += [_of(p) for p in self.predictions if p.row.workload == workload]
        return "\n".join([*lines, "", *self._families(), "", *self._summary()])

    def _families(self) -> list[str]:
        lines = [f"{'workload':24}{'rows':>6}{'median':>9}{'worst':>9}{'over 30 %':>11}"]
        for workload in dict.fromkeys(p.row.workload for p in self.tests):
            family = [p for p in self.tests if p.row.workload == workload]
            worst = max(family, key=lambda p: abs(p.error))
            far = sum(not p.is_within_goal for p in family)
            middle = median(abs(p.error) for p in family)
            lines.append(
                f"{workload:24}{len(family):6}{middle:9.1%}{worst.error:+9.0%}{far or '':>11}"
            )
        return lines

    def _summary(self) -> list[str]:
        if not self.tests:
            return ["All rows were used for fitting: there is nothing to test."]
        worst = max(self.tests, key=lambda p: abs(p.error))
        within = len(self.tests) - len(self.misses)
        lines = [
            f"{len(self.tests)} rows tested, {len(self.predictions) - len(self.tests)} fitted",
            f"median error {self.median_error:.1%} "
            f"(goal {MEDIAN_GOAL:.0%}, bound {MEDIAN_BOUND:.0%})",
            f"within {WORST_GOAL:.0%}: {within} of {len(self.tests)}; "
            f"worst {worst.error:+.0%} ({worst.row.id})",
        ]
        return lines + [
            f"{p.row.id} is {p.error:+.0%} off, and its row does not say why"
            for p in self.unexplained
        ]


def _of(prediction: Prediction) -> str:
    row = prediction.row
    mark = f"fitted: {row.fitted}" if row.fitted else ""
    if not row.fitted and not prediction.is_within_goal:
        mark = row.comment
    texts = (f"{prediction.predicted:.4g}", f"{row.published:.4g}", f"{prediction.error:+.1%}")
    return _line(f"  {row.id}", *texts, row.unit, row.machine, mark)


def _line(name: str, predicted: str, published: str, error: str, *rest: str) -> str:
    line = f"{name:46}{predicted:>11}{published:>11}{error:>9}"
    return "  ".join([line, *filter(None, rest)])
