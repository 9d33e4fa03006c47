"""The page that holds the simulator's predictions beside published figures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from d2lpar import validation
from d2lpar.validation.command import MOST_PROCESSES
from d2lpar.validation.report import WORST_GOAL, Comparison, Report
from d2lpar.validation.rows import PublishedFigure

PROCESSES = min(os.cpu_count() or 1, MOST_PROCESSES)
OPENING = Path(__file__).parent / "sphinx" / "validation.md"
SUMMARY = (
    "rows of",
    "number",
    "sources",
    "median of sources",
    "median error",
    "mean error",
    f"within {WORST_GOAL:.0%}",
    "bias",
    "naive median",
    "skill",
)
ROWS = ("row", "machine", "predicted", "published", "error", "naive", "source", "remarks")
MADE_FROM = (".py", ".csv", ".md")
GROUPS, CHOICES, ALL = "## By group", "## By kind of source", "## All rows"


def write_page(target: Path) -> None:
    """Write the page as Markdown, unless it is newer than all that it is made from."""
    if is_stale(target, Path(__file__), OPENING):
        write(target, lines(validation.validate(processes=PROCESSES)))


def is_stale(target: Path, *sources: Path) -> bool:
    """Whether a page is missing, or older than one of its own sources or than the simulator."""
    made_from = [*Path(validation.__file__).parents[1].rglob("*.[pc]*"), *sources]
    newest_s = max(path.stat().st_mtime for path in made_from if path.suffix in MADE_FROM)
    return not target.exists() or target.stat().st_mtime <= newest_s


def write(target: Path, page: Iterable[str]) -> None:
    """Write the lines of a page."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(page) + "\n", encoding="utf-8")


def lines(report: Report) -> Iterator[str]:
    """The lines of the page."""
    fitted = len(report.predictions) - len(report.tests)
    yield OPENING.read_text(encoding="utf-8").format(
        tested=len(report.tests), fitted=fitted, misses=len(report.misses), worst=WORST_GOAL
    )
    yield GROUPS + "\n"
    yield from table(SUMMARY, [(name, *errors.texts) for name, errors in report.by_group.items()])
    yield "\n" + CHOICES + "\n"
    yield from table(SUMMARY, [(name, *errors.texts) for name, errors in report.by_choice.items()])
    yield "\n" + ALL
    for workload in dict.fromkeys(p.row.workload for p in report.predictions):
        yield f"\n### {workload.replace('_', ' ')}\n"
        own = [p for p in report.predictions if p.row.workload == workload]
        yield from table(ROWS, [columns(p) for p in own])


def columns(prediction: Comparison) -> Sequence[str]:
    """What the table says of one prediction."""
    row, (predicted, published, *errors) = prediction.row, prediction.texts
    return (
        f"`{row.id}`",
        f"`{row.machine}`",
        f"{predicted} {row.unit}",
        f"{published} {row.unit}",
        *errors,
        f"{linked(row)}, {escaped(row.table)}",
        escaped("; ".join(prediction.remarks)),
    )


def linked(row: PublishedFigure) -> str:
    """The source of a row, with a link if it is elsewhere; our own stands in the repository."""
    source = escaped(row.source)
    return f"[{source}](<{row.url}>)" if "://" in row.url else source


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown. Raises ValueError if a row has not as many cells as the head."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"{len(row)} cells under {len(head)} titles: {row}")
        yield "| " + " | ".join(row) + " |"


def escaped(text: str) -> str:
    """The text with what Markdown would take for its own."""
    return "".join(f"\\{sign}" if sign in r"\`*_[]<>|$#&" else sign for sign in text)
