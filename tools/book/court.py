"""The page that holds what others predict beside the simulator, on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from d2lpar.validation.court import OURS, ROOFLINE, TITLES, Case, Court, hold

from .validation import PROCESSES, escaped, is_stale, linked, table, write

OPENING = Path(__file__).parent / "sphinx" / "court.md"
BY_PREDICTOR, ALL = "## By predictor", "## All rows"


def write_page(target: Path) -> None:
    """Write the page as Markdown, unless it is newer than all that it is made from."""
    if is_stale(target, Path(__file__), OPENING):
        write(target, lines(hold(processes=PROCESSES)))


def lines(court: Court) -> Iterator[str]:
    """The lines of the page."""
    yield OPENING.read_text(encoding="utf-8")
    yield BY_PREDICTOR + "\n"
    verdicts = [
        (f"rows of {of}" if name == of else "", name, *columns)
        for of, name, columns in court.verdicts()
    ]
    yield from table(("", "predictor", *TITLES), verdicts)
    yield f"\n{ALL}\n"
    names = (OURS, ROOFLINE, *court.predictors)
    head = ("row", "machine", "measured", *names, "source")
    yield from table(head, [columns_of(court, case, names) for case in court.cases])


def columns_of(court: Court, case: Case, names: tuple[str, ...]) -> tuple[str, ...]:
    """What the table says of one row: by how much each predictor is off."""
    row = case.ours.row
    return (
        f"`{row.id}`",
        f"`{row.machine}`",
        f"{row.published:.4g} {row.unit}",
        *(court.error(case, name) for name in names),
        f"{linked(row)}, {escaped(row.table)}",
    )
