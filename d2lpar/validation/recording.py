"""What each row came to when all were last validated, so that a lesson can say at once how far off
predictions of its kind are.

`make validate` writes the file; its difference to the last one says which predictions have moved.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from ..timeline import whole_file
from .groups import GROUPS
from .report import Comparison, Errors, Report
from .rows import PublishedFigure, RowError, number_above_zero, read_fields, read_rows

OUTCOMES = Path(__file__).with_name("outcomes")
RECORDED = OUTCOMES / "rows.csv"
COLUMNS = ("row", "group", "predicted", "naive")
BLIND = OUTCOMES / "blind.csv"
BLIND_COLUMNS = (
    *("id", "group", "program", "machine", "published", "predicted"),
    *("unit", "source", "url", "table", "date"),
)
DIGITS = 6


def record(report: Report, path: str | os.PathLike = RECORDED) -> None:
    """Write what a report of all rows has come to."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in report.predictions:
        naive = "" if each.naive is None else f"{each.naive:.{DIGITS}g}"
        writer.writerow([each.row.id, each.group, f"{each.predicted:.{DIGITS}g}", naive])
    whole_file.write(path, table.getvalue())


def recorded(path: str | os.PathLike = RECORDED) -> Report:
    """The report that `record` wrote. Raises RowError for a row that is published no longer."""
    rows = {row.id: row for row in read_rows()}
    found = []
    for where, texts in read_fields(path, COLUMNS, may_be_empty=("naive",)):
        if texts["row"] not in rows:
            raise RowError(f"{where}: no published row is called {texts['row']!r}")
        predicted = number_above_zero("predicted", texts["predicted"], where)
        naive = number_above_zero("naive", texts["naive"], where) if texts["naive"] else None
        found.append(Comparison(rows[texts["row"]], predicted, texts["group"], naive))
    return Report(tuple(found))


def predicted_blind(path: str | os.PathLike = BLIND) -> tuple[Comparison, ...]:
    """A blind round of programs as they were predicted before anybody had seen the figures.

    They were written for it, from descriptions, so no row says all that they do, and they are not
    predicted again: a model that knows the figures could no more be blind. Raises ValueError.
    """
    found = []
    for where, texts in read_fields(path, BLIND_COLUMNS):
        published, predicted = (
            number_above_zero(name, texts[name], where) for name in ("published", "predicted")
        )
        what = (texts["machine"], published, texts["unit"], texts["source"], texts["url"])
        table, note = texts["table"], texts["program"]
        row = PublishedFigure(texts["id"], "program", {}, *what, table, note, apart=texts["date"])
        found.append(Comparison(row, predicted, _known(texts["group"])))
    return tuple(found)


def uncertainty(group: str) -> float:
    """The share by which predictions of one of the `GROUPS` are typically off: the median error,
    without its sign, of figures whose sources were held apart. Raises ValueError for another group.
    """
    return Errors.of(_apart(_known(group), recorded())).median


def trust(*groups: str) -> str:
    """How far off predictions of these `GROUPS` were for sources that were held apart: a sentence
    for each.

    Raises ValueError for another group.
    """
    report = recorded()
    return "\n".join(f"{group}: {_said_of(group, report)}" for group in map(_known, groups))


def _known(group: str) -> str:
    if group not in GROUPS:
        raise ValueError(f"there is no group {group!r} of published figures: {', '.join(GROUPS)}")
    return group


def _apart(group: str, report: Report) -> list[Comparison]:
    return [each for each in report.apart if each.group == group]


def _said_of(group: str, report: Report) -> str:
    apart = _apart(group, report)
    if not apart:
        return "no published figure was held apart"
    errors = Errors.of(apart)
    sources = f"{errors.sources} sources" if errors.sources > 1 else "one source"
    return (
        f"{errors.rows} published figures of {sources},\n  that nobody looked at "
        f"while the model was made: off by {errors.median:.0%}\n  in the median, "
        f"{errors.mean:.0%} in the mean; {errors.within:.0%} are within 30 %"
    )
