"""The file of results: a row a figure, in the columns of the table of published figures.

It is written whole after every change, so that whatever ends the program leaves what was measured.
"""

import csv
import os
from collections.abc import Callable, Iterable
from pathlib import Path

ROWS = Path(__file__).with_name("rows.csv")
URL = "benchmarks/gpu/rows.csv"
WAITING = "not measured yet"
COLUMNS = (
    *("id", "workload", "parameters", "machine", "published", "unit", "source", "url", "table"),
    *("note", "fitted", "comment", "apart", "predicted", "spread", "no_figure"),
)
Row = dict[str, str]


def rows_of(tables: Iterable[str], machine: str, prefix: str) -> list[Row]:
    """The rows of these tables, all of them if none is named, waiting for their figures.

    Raises ValueError for a table that there is not.
    """
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known, tables = list(dict.fromkeys(row["table"] for row in rows)), list(tables)
    if unknown := [table for table in tables if table not in known]:
        raise ValueError(f"there is no table {', '.join(unknown)}: there is {', '.join(known)}")
    return [
        dict.fromkeys(COLUMNS, "")
        | {**row, "id": prefix + row["id"], "machine": machine}
        | {"source": "d2lpar: make gpu", "url": URL, "no_figure": WAITING}
        for row in rows
        if not tables or row["table"] in tables
    ]


class Figures:
    """The rows and their file. `say` prints a line for each change."""

    def __init__(self, path: Path, rows: list[Row], say: Callable[[str], object] = print) -> None:
        self.path, self.rows, self._say = path, rows, say
        self._by_id = {row["id"]: row for row in rows}
        self.write()

    def add(self, row: Row) -> None:
        """One more row."""
        self.rows.append(dict.fromkeys(COLUMNS, "") | row)
        self._by_id[row["id"]] = self.rows[-1]
        self.change(row["id"])

    def change(self, name: str, *, quiet: bool = False, **fields: str) -> None:
        """Fill in fields of a row, and write the file."""
        row = self._by_id[name]
        row.update(fields)
        self.write()
        if not quiet:
            self._say(line(row))

    def write(self) -> None:
        """The file, whole or as it was."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        os.replace(part, self.path)


def error_of(row: Row) -> float | None:
    """How far the prediction is off, relative to what was measured; None without the two."""
    if not row["published"] or not row["predicted"]:
        return None
    return float(row["predicted"]) / float(row["published"]) - 1


def line(row: Row) -> str:
    """A row for people."""
    error = error_of(row)
    numbers = f"{row['predicted']:>11}{row['published']:>11}"
    off = "" if error is None else f"{error:+.1%}"
    return f"{row['id']:42}{numbers} {row['unit']:9}{off:>9}  {row['no_figure']}".rstrip()
