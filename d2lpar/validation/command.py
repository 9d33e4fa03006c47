"""`d2lpar validate`: predicted beside published, and whether the bounds hold."""

from __future__ import annotations

import argparse
from pathlib import Path

from .rows import PUBLISHED, RowError, read_rows
from .runner import validate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="NAME", help="rows of one workload, or one row by its id")
    parser.add_argument(
        "--csv", type=Path, default=PUBLISHED, metavar="FILE", help="rows of another file"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 1 if a bound is broken, 2 if the rows cannot be used."""
    try:
        rows = read_rows(arguments.csv)
        name = arguments.only
        chosen = [r for r in rows if name is None or name in (r.workload, r.id)]
        if not chosen:
            raise RowError(f"{arguments.csv} has no row and no workload called {name!r}")
        report = validate(chosen)
    except (RowError, OSError) as error:
        print(f"d2lpar validate: {error}")
        return 2
    print(report.text())
    return 0 if report.holds else 1


def main(argv: list[str] | None = None) -> int:
    """The subcommand by itself: `python -m d2lpar.validation`."""
    parser = argparse.ArgumentParser(prog="d2lpar validate", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))
