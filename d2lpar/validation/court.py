"""The court: what other predictors say of measured figures, beside the simulator and a roofline.

Rows are figures whose authors, or others, have published predictions of the same runs. They lie in
a file of their own because nothing may be fitted to them, and because they would change what the
table of published figures says in all. What each predictor has to be given differs: the page of the
site that shows this table says it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from ..machines.hardware import Accelerator, Machine
from .report import Comparison, Errors
from .rows import PublishedFigure, RowError, number_above_zero, read_fields, read_rows
from .runner import each, predict

COURT = Path(__file__).with_name("court.csv")
PREDICTIONS = Path(__file__).with_name("predictions.csv")
COLUMNS = ("row", "predictor", "predicted", "url", "read")
OURS, ROOFLINE = "d2lpar", "roofline"
AT_ONCE = 1e9  # times as fast as it is: a host that takes no time
TITLES = ("rows", "median", "mean", "in 30 %", "bias", f"nearer than {OURS}")


@dataclass(frozen=True)
class Prediction:
    """What another `predictor` has published for a row, in the row's unit; `read` is a day."""

    row: str
    predictor: str
    predicted: float
    url: str
    read: date


def read_predictions(path: str | os.PathLike = PREDICTIONS) -> list[Prediction]:
    """The predictions of a CSV file. Raises RowError for what is missing, empty, wrong or twice."""
    found: dict[tuple[str, str], Prediction] = {}
    for where, texts in read_fields(path, COLUMNS):
        key = texts["row"], texts["predictor"]
        if key in found:
            raise RowError(f"{where}: {key[1]} predicts {key[0]} twice")
        predicted = number_above_zero("predicted", texts["predicted"], where)
        try:
            day = date.fromisoformat(texts["read"])
        except ValueError:
            raise RowError(f"{where}: read must be a date, not {texts['read']!r}") from None
        found[key] = Prediction(*key, predicted, texts["url"], day)
    return list(found.values())


# --- the roofline ---------------------------------------------------------------------------------


def under_the_roof(machine: Machine) -> Machine:
    """The machine on which each kernel takes its FLOP at the peak rate or its bytes at the memory's
    rate, whichever is longer, and nothing else (Williams et al. 2009).

    Kernels start at once, a host takes no time. Exchanges between GPUs are as they were.
    """
    accelerators = tuple(map(_at_its_peaks, machine.accelerators))
    return replace(machine, accelerators=accelerators, host=machine.host.at_speed(AT_ONCE))


def _at_its_peaks(accelerator: Accelerator) -> Accelerator:
    """Rates that are `measured` are reached whatever a kernel's shape."""
    return replace(accelerator, measured=True, reached={}, kernel_latency_s=0.0)


# --- cases and verdicts ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A row, and what is said of it by the simulator, by the roofline and by others' names."""

    ours: Comparison
    roofline: Comparison
    others: dict[str, Comparison]

    def said_by(self, name: str) -> Comparison:
        """What one of them says. Raises KeyError if it says nothing."""
        return {**self.others, OURS: self.ours, ROOFLINE: self.roofline}[name]

    def is_nearer(self, name: str) -> bool:
        """Whether one of them is nearer to what was measured than the simulator."""
        return abs(self.said_by(name).error) < abs(self.ours.error)


@dataclass(frozen=True)
class Court:
    """Cases, each of which at least one other predictor has taken."""

    cases: tuple[Case, ...]

    @property
    def predictors(self) -> list[str]:
        """The others, by their names."""
        return sorted({name for case in self.cases for name in case.others})

    def heard(self, predictor: str) -> list[Case]:
        """The cases of which a predictor says something."""
        return [case for case in self.cases if predictor in case.others]

    def verdicts(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """For each predictor the errors of itself, of the simulator and of the roofline on exactly
        its rows: whose rows, who predicts, and columns as `TITLES` has them."""
        for predictor in self.predictors:
            cases = self.heard(predictor)
            for name in (predictor, OURS, ROOFLINE):
                yield predictor, name, _columns(cases, name)

    def text(self, *, rows: bool = False) -> str:
        """The table, and each row before it if `rows` are asked for."""
        lines = [f"{'':26}" + "".join(f"  {title:>7}" for title in TITLES)]
        for predictor, name, columns in self.verdicts():
            if name == predictor:
                lines += ["", f"rows of {predictor}"]
            lines.append(f"  {name:24}" + "".join(f"{text:>9}" for text in columns))
        return "\n".join([*(self._rows() if rows else ()), *lines])

    def _rows(self) -> Iterator[str]:
        names = (OURS, ROOFLINE, *self.predictors)
        yield f"{'':44}{'measured':>12}" + "".join(f"{name:>11}" for name in names)
        for case in self.cases:
            row = case.ours.row
            errors = "".join(f"{self.error(case, name):>11}" for name in names)
            yield f"{row.id:44}{row.published:>10.4g} {row.unit}{errors}"
        yield ""

    @staticmethod
    def error(case: Case, name: str) -> str:
        """By how much somebody is off in a case, with sign, as text; "" if nothing is said."""
        silent = name not in (OURS, ROOFLINE, *case.others)
        return "" if silent else f"{case.said_by(name).error:+.1%}"


def _columns(cases: Sequence[Case], name: str) -> tuple[str, ...]:
    errors = Errors.of([case.said_by(name) for case in cases])
    nearer = sum(case.is_nearer(name) for case in cases)
    return (
        str(errors.rows),
        f"{errors.median:.1%}",
        f"{errors.mean:.1%}",
        f"{errors.within:.0%}",
        f"{errors.bias:+.1%}",
        "" if name == OURS else f"{nearer} of {len(cases)}",
    )


def hold(
    rows: Iterable[PublishedFigure] | None = None,
    predictions: Iterable[Prediction] | None = None,
    *,
    processes: int = 1,
) -> Court:
    """Simulate rows (None: those of the package) and set what others predict beside them.

    Raises RowError for a row that nobody else has predicted.
    """
    chosen = list(read_rows(COURT) if rows is None else rows)
    said: dict[str, dict[str, float]] = {row.id: {} for row in chosen}
    for one in read_predictions() if predictions is None else predictions:
        if one.row in said:
            said[one.row][one.predictor] = one.predicted
    for name, others in said.items():
        if not others:
            raise RowError(f"row {name}: {PREDICTIONS.name} has no prediction of it")
    pairs = each(own_predictions, chosen, processes)
    return Court(tuple(_case(*pair, said[pair[0].row.id]) for pair in pairs))


def own_predictions(row: PublishedFigure) -> tuple[Comparison, Comparison]:
    """What the simulator says of a row, and the roofline."""
    return predict(row), predict(row, under_the_roof)


def _case(ours: Comparison, roofline: Comparison, others: dict[str, float]) -> Case:
    said = {name: replace(ours, predicted=value, naive=None) for name, value in others.items()}
    return Case(ours, roofline, said)
