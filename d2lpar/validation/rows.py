"""Published figures: one row of a CSV file each, with where it comes from."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from ..timeline import whole_file

PUBLISHED = Path(__file__).with_name("published.csv")
REQUIRED = (
    *("id", "workload", "parameters", "machine", "published"),
    *("unit", "source", "url", "table", "note"),
)
MAY_BE_EMPTY = ("note", "parameters")
OPTIONAL = ("fitted", "comment", "apart")
NO_FIGURE = "no_figure"  # the column that says why a row of `make gpu` has nothing to compare
ANCHORS = ("single_gpu_images_per_s", "relative_samples_per_s")


class RowError(ValueError):
    """A row that cannot be used; its text names line and field."""


@dataclass(frozen=True)
class PublishedFigure:
    """A published figure: what was run (`workload`, `parameters`), on which machine, the result.

    `table` says where in the source it stands. `fitted` names the constant of
    `d2lpar.vgpu.sim.constants` that was chosen so that this row comes out right, "" for a test.
    `comment` says why a prediction is far off: a hypothesis, unless it begins with "shown:".
    `apart` is "yes" for the rows of a source that was held apart: chosen before its first
    prediction, by repository or page, and looked at neither while fitting nor while modelling. It
    is the date of that prediction for those of a blind round: sources that were not known before.
    """

    id: str
    workload: str
    parameters: dict[str, str]
    machine: str
    published: float
    unit: str
    source: str
    url: str
    table: str
    note: str
    fitted: str = ""
    comment: str = ""
    apart: str = ""

    @property
    def origin(self) -> str:
        """Where it was published: a repository, or the address of a page."""
        host, _, path = self.url.partition("://")[2].partition("/")
        if host in ("github.com", "huggingface.co"):
            return "/".join(path.split("/")[:2]).lower()
        return f"{host}/{path}".rstrip("/").lower()

    @property
    def anchored(self) -> bool:
        """Whether its input is itself a published throughput, so that little is predicted."""
        return any(name in self.parameters for name in ANCHORS)


def read_rows(path: str | os.PathLike = PUBLISHED) -> list[PublishedFigure]:
    """The rows of a CSV file with a header. Columns that are not known are left out, and so are
    rows that say that they have no figure. Raises RowError for what is missing, empty or wrong."""
    rows: dict[str, PublishedFigure] = {}
    for where, texts in read_fields(path, REQUIRED, MAY_BE_EMPTY, OPTIONAL, unless=NO_FIGURE):
        row = _row(texts, where)
        if row.id in rows:
            raise RowError(f"{where}: id {row.id!r} occurs twice")
        rows[row.id] = row
    return list(rows.values())


def read_fields(
    path: str | os.PathLike,
    required: Sequence[str],
    may_be_empty: Sequence[str] = (),
    optional: Sequence[str] = (),
    unless: str = "",
) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each line of a CSV file with a header stands, and its fields by their names; but for
    lines that have something in the column `unless`.

    Raises RowError for a column that is missing, and for fields that are empty or too many.
    """
    try:
        reader = csv.DictReader(whole_file.read(path, "a CSV file").splitlines(keepends=True))
    except ValueError as error:
        raise RowError(str(error)) from None
    missing = [name for name in required if name not in (reader.fieldnames or ())]
    if missing:
        raise RowError(f"{path}, line 1: the header lacks {', '.join(missing)}")
    for fields in reader:
        if not fields.get(unless):
            where = f"{path}, line {reader.line_num}"
            yield where, _texts(fields, where, required, may_be_empty, optional)


def row_of(fields: Mapping, where: str) -> PublishedFigure:
    """A row from its fields by column; `where` says in errors where it stands. Raises RowError."""
    return _row(_texts(fields, where, REQUIRED, MAY_BE_EMPTY, OPTIONAL), where)


def _texts(
    fields: Mapping,
    where: str,
    required: Sequence[str],
    may_be_empty: Sequence[str],
    optional: Sequence[str],
) -> dict[str, str]:
    for name in required:
        value = fields[name]
        if value is None or (not value.strip() and name not in may_be_empty):
            raise RowError(f"{where}: {name} is empty")
    if None in fields:
        raise RowError(f"{where}: there are more fields than the header names: {fields[None]}")
    return {name: (fields.get(name) or "").strip() for name in (*required, *optional)}


def _row(texts: dict[str, str], where: str) -> PublishedFigure:
    parameters = _parameters(texts.pop("parameters"), where)
    published = number_above_zero("published", texts.pop("published"), where)
    if texts["apart"] not in ("", "yes"):
        _check_date(texts["apart"], where)
    return PublishedFigure(**texts, parameters=parameters, published=published)


def number_above_zero(name: str, text: str, where: str) -> float:
    """The number that a field holds. Raises RowError for another one and for other words."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RowError(f"{where}: {name} must be a number above zero, not {text!r}")
    return value


def _check_date(text: str, where: str) -> None:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise RowError(f"{where}: apart must be empty, yes or a date, not {text!r}") from None


def _parameters(text: str, where: str) -> dict[str, str]:
    """`batch=64; image=224` as a dictionary."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise RowError(f"{where}: parameters must read name=value; name=value, not {part!r}")
        if name in found:
            raise RowError(f"{where}: parameters give {name} twice")
        found[name] = value
    return found
