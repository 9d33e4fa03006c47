"""`d2lpar validate`: predicted beside published, and whether the bounds hold."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from ..timeline.printing import say
from .court import COURT, hold
from .recording import predicted_blind, record
from .rows import PUBLISHED, PublishedFigure, RowError, read_rows
from .runner import validate

MOST_PROCESSES = 4


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 if a bound is broken, 2 if the rows cannot be used."""
    parser = argparse.ArgumentParser(prog="d2lpar validate", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="rows of one workload, or one row by its id")
    parser.add_argument(
        "--csv", type=Path, default=PUBLISHED, metavar="FILE", help="rows of another file"
    )
    parser.add_argument(
        "--court", action="store_true", help="beside what others predict, on the same rows"
    )
    parser.add_argument("--rows", action="store_true", help="with --court: each row as well")
    parser.add_argument(
        "--record", action="store_true", help="write what all rows come to, which lessons quote"
    )
    options = parser.parse_args(argv)
    if options.rows and not options.court:
        parser.error("--rows belongs to --court: without it every row is printed anyway")
    if options.record and (options.only or options.court or options.csv != PUBLISHED):
        parser.error("--record is for all published rows: leave out --only, --csv and --court")
    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    try:
        if options.court:
            judged = hold(_chosen(COURT, options.only), processes=processes)
            say(judged.text(rows=options.rows))
            return 0
        rows = _chosen(options.csv, options.only)
        report = validate(rows, processes=processes)
        if options.only is None and options.csv == PUBLISHED:
            report = replace(report, before=predicted_blind())
    except (RowError, OSError, ModuleNotFoundError) as error:
        print(f"d2lpar validate: {error}", file=sys.stderr)
        return 2
    say(report.text())
    if options.record:
        record(report)
    return 0 if report.holds else 1


def _chosen(file: Path, name: str | None) -> list[PublishedFigure]:
    """The rows of a workload, or the row of an id; None stands for all."""
    rows = [r for r in read_rows(file) if name is None or name in (r.workload, r.id)]
    if not rows:
        raise RowError(
            f"{file} has no row and no workload called {name!r}: its first column has the rows' "
            "names, its second the workloads'"
        )
    return rows
