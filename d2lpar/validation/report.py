"""How far predictions are from what was published: by row, by group, and beside a naive model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from .groups import GROUPS, INFERENCE, PROGRAMS
from .rows import PublishedFigure

WORST_GOAL = 0.30
_TITLES = ("rows", "sources", "by source", "median", "mean", "in 30 %", "bias", "naive", "skill")
SHOWN = "shown:"  # how the comment of a row begins whose cause was shown


@dataclass(frozen=True)
class Bounds:
    """What a set of predictions should reach, or holds and must go on holding.

    `median`, `group` and `bias` are relative errors, `within` the share of rows within 30 %.
    """

    median: float
    within: float
    group: float
    bias: float


GOALS = Bounds(median=0.10, within=0.85, group=0.15, bias=0.05)
APART_GOALS = Bounds(median=0.12, within=0.80, group=0.20, bias=0.05)
HELD = Bounds(median=0.105, within=0.84, group=0.115, bias=0.05)  # must go on holding
APART_HELD = Bounds(median=0.13, within=0.80, group=0.20, bias=0.05)  # of sources held apart
# Groups that are far from the goal: nothing of the kind was looked at while the others were made.
HELD_GROUPS = {PROGRAMS: 0.27, INFERENCE: 0.19}


@dataclass(frozen=True)
class Comparison:
    """A row, what the simulator makes of it, and what a naive model does, in the row's unit.

    The naive model takes a kernel at its peak rate, a copy or collective at the rate of its link,
    and many GPUs as so many times one; None where there is no such figure.
    """

    row: PublishedFigure
    predicted: float
    group: str
    naive: float | None = None

    @property
    def error(self) -> float:
        """Relative to the published figure, with sign: 0.1 is 10 % too high."""
        return self.predicted / self.row.published - 1

    @property
    def naive_error(self) -> float | None:
        """The same of the naive model."""
        return None if self.naive is None else self.naive / self.row.published - 1

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """Predicted and published figure, its error, and that of the naive model, as text."""
        naive = self.naive_error
        return (
            f"{self.predicted:.4g}",
            f"{self.row.published:.4g}",
            f"{self.error:+.1%}",
            "" if naive is None else f"{naive:+.0%}",
        )

    @property
    def remarks(self) -> list[str]:
        """What there is to say about the row: what it was used for, and why it is far off."""
        row = self.row
        used = {
            f"fitted: {row.fitted}": row.fitted,
            "held apart": row.apart,
            "anchored": row.anchored,
        }
        found = [remark for remark, holds in used.items() if holds]
        if not row.fitted and not self.is_within_goal:
            shown = row.comment.lower().startswith(SHOWN)
            found.append(row.comment if shown else f"hypothesis: {row.comment or 'none'}")
        return found

    @property
    def is_within_goal(self) -> bool:
        """Whether the error is at most the goal for the worst."""
        return abs(self.error) <= WORST_GOAL

    @property
    def is_too_fast(self) -> bool:
        """Whether the prediction flatters: less time, or more work in a second."""
        return self.speed_error > 0

    @property
    def speed_error(self) -> float:
        """The relative error of the speed: above 0 the simulator is faster than what was run."""
        if self.row.unit in ("s", "fraction", "GiB") or self.row.workload == "model_parallel":
            return self.row.published / self.predicted - 1
        return self.error


@dataclass(frozen=True)
class Errors:
    """The errors of some predictions, summed up; there is at least one.

    `by_source` is the median over `sources` of the median of each: a source of many rows counts as
    one of few.
    """

    rows: int
    sources: int
    by_source: float
    median: float
    mean: float
    within: float
    bias: float
    naive: float | None
    skill: float | None

    @classmethod
    def of(cls, predictions: Sequence[Comparison]) -> Errors:
        """Of at least one prediction."""
        compared = [p for p in predictions if p.naive_error is not None]
        naive = median(abs(p.naive_error or 0.0) for p in compared) if compared else None
        ours = median(abs(p.error) for p in compared) if compared else None
        sources = defaultdict(list)
        for p in predictions:
            sources[p.row.origin].append(abs(p.error))
        errors = [abs(p.error) for p in predictions]
        return cls(
            len(predictions),
            len(sources),
            median(map(median, sources.values())),
            median(errors),
            mean(errors),
            sum(p.is_within_goal for p in predictions) / len(predictions),
            median(p.speed_error for p in predictions),
            naive,
            1 - ours / naive if naive and ours is not None else None,
        )

    def keeps(self, bounds: Bounds) -> bool:
        """Whether all of these rows together are within the bounds."""
        return (
            self.median <= bounds.median
            and self.within >= bounds.within
            and abs(self.bias) <= bounds.bias
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of a table, as `_TITLES` has them."""
        return (
            str(self.rows),
            str(self.sources),
            f"{self.by_source:.1%}",
            f"{self.median:.1%}",
            f"{self.mean:.1%}",
            f"{self.within:.0%}",
            f"{self.bias:+.1%}",
            "" if self.naive is None else f"{self.naive:.1%}",
            "" if self.skill is None else f"{self.skill:.2f}",
        )


@dataclass(frozen=True)
class Report:
    """Predictions; rows to which a constant was fitted count for nothing but are shown.

    `before` are predictions of blind rounds that are not made again.
    """

    predictions: tuple[Comparison, ...]
    before: tuple[Comparison, ...] = ()

    @property
    def tests(self) -> list[Comparison]:
        """Those of rows to which nothing was fitted."""
        return [p for p in self.predictions if not p.row.fitted]

    @property
    def apart(self) -> list[Comparison]:
        """Those of sources that were held apart: nobody looked at them while fitting."""
        return [p for p in self.tests if p.row.apart]

    @property
    def newest(self) -> str:
        """The date of the newest blind round; "" if there is none."""
        dates = (p.row.apart for p in (*self.apart, *self.before))
        return max((date for date in dates if date != "yes"), default="")

    @property
    def blind(self) -> list[Comparison]:
        """Those of the newest blind round."""
        newest = self.newest
        return [p for p in (*self.apart, *self.before) if p.row.apart == newest]

    @property
    def anchored(self) -> list[Comparison]:
        """Those of rows whose input is itself a published throughput."""
        return [p for p in self.tests if p.row.anchored]

    @property
    def misses(self) -> list[Comparison]:
        """Those further off than the goal for the worst, worst first."""
        far = [p for p in self.tests if not p.is_within_goal]
        return sorted(far, key=lambda p: -abs(p.error))

    @property
    def unexplained(self) -> list[Comparison]:
        """Misses for whose cause there is not even a hypothesis."""
        return [p for p in self.misses if not p.row.comment]

    @property
    def by_group(self) -> dict[str, Errors]:
        """The errors of each group that has rows."""
        found = {g: [p for p in self.tests if p.group == g] for g in GROUPS}
        return {group: Errors.of(rows) for group, rows in found.items() if rows}

    @property
    def by_choice(self) -> dict[str, Errors]:
        """The errors for each way to choose among the tested rows that leaves any."""
        chosen: dict[str, Sequence[Comparison]] = {
            "all": self.tests,
            "sources held apart": self.apart,
            f"blind, {self.newest}": self.blind,
            "other sources": [p for p in self.tests if not p.row.apart],
            "not anchored": [p for p in self.tests if not p.row.anchored],
            "anchored": self.anchored,
        }
        return {name: Errors.of(rows) for name, rows in chosen.items() if rows}

    @property
    def holds(self) -> bool:
        """Whether all rows, those of each group and those held apart keep the bounds."""
        if not self.tests:
            return True
        held = {group: HELD_GROUPS.get(group, HELD.group) for group in GROUPS}
        groups = all(errors.median <= held[group] for group, errors in self.by_group.items())
        apart = not self.apart or Errors.of(self.apart).keeps(APART_HELD)
        return Errors.of(self.tests).keeps(HELD) and groups and apart

    # --- as text ----------------------------------------------------------------------------

    def text(self) -> str:
        """The table, family by family, and what it comes to."""
        lines = [_line("", "predicted", "published", "error", "naive")]
        for workload in dict.fromkeys(p.row.workload for p in self.predictions):
            lines += ["", workload]
            lines += [_of(p) for p in self.predictions if p.row.workload == workload]
        if not self.tests:
            return "\n".join([*lines, "", "All rows were used for fitting: nothing is tested."])
        return "\n".join([*lines, "", *self._table(), "", *self._summary()])

    def _table(self) -> list[str]:
        """A line for each group, and for each way to choose among all rows."""
        return [
            _columns("", _TITLES),
            *(_columns(group, errors.texts) for group, errors in self.by_group.items()),
            "",
            *(_columns(name, errors.texts) for name, errors in self.by_choice.items()),
        ]

    def _summary(self) -> list[str]:
        worst = max(self.tests, key=lambda p: abs(p.error))
        fast = sum(p.is_too_fast for p in self.tests)
        lines = [_headline("all", Errors.of(self.tests))]
        if self.blind:
            lines.append(_headline(f"blind, {self.newest}", Errors.of(self.blind)))
        lines += [
            f"{len(self.tests)} rows tested, {len(self.predictions) - len(self.tests)} fitted; "
            f"{fast} predictions are too fast",
            f"goals: median {GOALS.median:.0%}, {GOALS.within:.0%} within {WORST_GOAL:.0%}, "
            f"every group {GOALS.group:.0%}, bias ±{GOALS.bias:.0%}; "
            f"held apart {APART_GOALS.median:.0%} and {APART_GOALS.within:.0%}",
            f"worst {worst.error:+.0%} ({worst.row.id})",
        ]
        if self.unexplained:
            lines.append(
                f"{len(self.unexplained)} of {len(self.misses)} misses have no known cause"
            )
        return lines


def _headline(name: str, errors: Errors) -> str:
    return (
        f"{name}: off by {errors.by_source:.1%}, the median over {errors.sources} sources of each "
        f"one's median; of rows {errors.median:.1%} in the median, {errors.mean:.1%} in the mean"
    )


def _of(prediction: Comparison) -> str:
    row = prediction.row
    return _line(f"  {row.id}", *prediction.texts, row.unit, row.machine, *prediction.remarks)


def _line(name: str, predicted: str, published: str, error: str, naive: str, *rest: str) -> str:
    line = f"{name:46}{predicted:>11}{published:>11}{error:>9}{naive:>8}"
    return "  ".join([line, *filter(None, rest)])


def _columns(name: str, texts: Sequence[str]) -> str:
    return f"{name:28}" + "".join(f"{text:>10}" for text in texts)
