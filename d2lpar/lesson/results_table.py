"""Results that took too long to measure in a lesson: tables that say how they came about.

A table is a CSV file. Lines that begin with # stand above it: the command, the machine, the
versions and the day. A script adds rows as soon as it has them, and goes on where it was stopped.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ..machines.measuring import system


@dataclass(frozen=True)
class Table:
    """Rows by column name, numbers as float; `heading` tells how they came about."""

    heading: tuple[str, ...]
    rows: tuple[dict[str, float | str], ...]

    def where(self, **wanted: object) -> list[dict[str, float | str]]:
        """The rows that have these values, in their order."""
        return [r for r in self.rows if all(r[name] == value for name, value in wanted.items())]

    def __str__(self) -> str:
        return "recorded: " + "; ".join(self.heading)


def read(file: str | os.PathLike) -> Table:
    """The table in a file. Raises ValueError naming a row that was cut off or does not fit."""
    text = Path(file).read_text(encoding="utf-8")
    lines = text.splitlines()
    heading = tuple(line[1:].strip() for line in lines if line.startswith("#"))
    found = [line for line in lines if not line.startswith("#")]
    if not found:
        raise ValueError(f"{file}: found no names of columns; delete it to begin it anew")
    if not text.endswith("\n"):
        raise ValueError(f"{file}: the last row was cut off; delete what is left: {lines[-1]}")
    names, *rows = csv.reader(found)
    for row in rows:
        _check(row, names, file)
    return Table(heading, tuple(dict(zip(names, map(_number, row), strict=True)) for row in rows))


class Recorder:
    """Adds rows to the table in `file`, which it begins if there is none.

    `key` names the columns that tell what was tried: `has` says whether the table holds that
    already, so that a script that was stopped can go on. `told` is what the heading says besides
    machine and versions: the command, and what else one should know. Raises ValueError for a file
    with other columns, or one that cannot be read.
    """

    def __init__(
        self,
        file: str | os.PathLike,
        columns: Sequence[str],
        *,
        key: Sequence[str],
        told: Sequence[str],
    ) -> None:
        self._file, self._columns, self._key = Path(file), tuple(columns), tuple(key)
        heading = [f"# {line}" for line in (*told, *_circumstances())]
        with contextlib.suppress(FileExistsError), self._file.open("x", encoding="utf-8") as new:
            new.write("\n".join([*heading, ",".join(columns)]) + "\n")
        rows = read(self._file).rows
        if rows and tuple(rows[0]) != self._columns:
            raise ValueError(f"{file} has the columns {[*rows[0]]}, not {[*columns]}: take another")
        self._done = {tuple(row[name] for name in self._key) for row in rows}

    def has(self, *values: float | str) -> bool:
        """Whether there is a row with these values in the columns of the key."""
        return tuple(values) in self._done

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Add what belongs together at once, so that no half of it is ever kept.

        Raises ValueError for a row that has not a value for each column, OSError where the disk is
        full: none of them is kept then.
        """
        fields = [[str(value) for value in row] for row in rows]
        text = io.StringIO()
        for row in fields:
            _check(row, self._columns, self._file)
            csv.writer(text, lineterminator="\n").writerow(row)
        with self._file.open("ab", buffering=0) as file:
            end, rest = file.seek(0, os.SEEK_END), text.getvalue().encode()
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError as error:
                file.truncate(end)
                error.filename = str(self._file)
                raise
        places = [self._columns.index(name) for name in self._key]
        self._done |= {tuple(_number(row[i]) for i in places) for row in fields}


def _check(row: Sequence[str], names: Sequence[str], file: str | os.PathLike) -> None:
    if len(row) != len(names):
        raise ValueError(f"{file}: expected {len(names)} fields {[*names]}, found {[*row]}")


def _circumstances() -> list[str]:
    now = datetime.datetime.now(datetime.UTC)
    return [
        f"{system.processor()}, {system.cores()} cores; Python {platform.python_version()}, "
        f"PyTorch {version('torch')}",
        f"begun {now:%Y-%m-%d}",
    ]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
