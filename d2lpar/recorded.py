"""Results that took too long to measure in a lesson: tables that say how they came about.

A table is a CSV file. Lines that begin with # stand above it: the command, the machine, the
versions and the day. A script adds rows as soon as it has them, and goes on where it was stopped.
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from .machines import system


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
    """The table in a file. Raises ValueError if a row has more or fewer fields than the heading."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    heading = tuple(line[1:].strip() for line in lines if line.startswith("#"))
    names, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    for row in rows:
        if len(row) != len(names):
            raise ValueError(f"{file}: expected {len(names)} fields {names}, found {row}")
    return Table(heading, tuple(dict(zip(names, map(_number, row), strict=True)) for row in rows))


class Recorder:
    """Adds rows to the table in `file`, which it begins if there is none.

    `key` names the columns that tell what was tried: `has` says whether the table holds that
    already, so that a script that was stopped can go on. `told` is what the heading says besides
    machine and versions: the command, and what else one should know.
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
        if not self._file.exists():
            heading = [f"# {line}" for line in (*told, *_circumstances())]
            self._file.write_text("\n".join([*heading, ",".join(columns)]) + "\n", encoding="utf-8")
        self._done = {tuple(row[name] for name in self._key) for row in read(self._file).rows}

    def has(self, *values: float | str) -> bool:
        """Whether there is a row with these values in the columns of the key."""
        return tuple(values) in self._done

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Add what belongs together at once, so that no half of it is ever kept."""
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(text)


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
