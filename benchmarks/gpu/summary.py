"""What the figures come to: errors by table, and the rows that are far off."""

from collections.abc import Iterable
from statistics import mean, median

from figures import Row, error_of, line

FAR = 0.3


def lines(rows: Iterable[Row]) -> list[str]:
    """A line a table, then the rows beyond `FAR`, worst first, then those without a figure."""
    rows = list(rows)
    figures = [row for row in rows if error_of(row) is not None and row["workload"] != "lesson"]
    tables = {table: [r for r in figures if r["table"] == table] for table in _tables(figures)}
    told = [f"{'':12}{'rows':>6}{'median':>9}{'mean':>9}{'in 30 %':>9}{'too fast':>10}"]
    told += [_errors(table, chosen) for table, chosen in tables.items()]
    if figures:
        told.append(_errors("all", figures))
    far = sorted((r for r in figures if _off(r) > FAR), key=_off, reverse=True)
    told += ["", f"{len(far)} rows are off by more than {FAR:.0%} (predicted, measured):"]
    told += map(line, far)
    missing = [row for row in rows if row not in figures]
    return [*told, "", f"{len(missing)} rows have no figure to compare:", *map(line, missing)]


def _tables(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["table"] for row in rows))


def _off(row: Row) -> float:
    return abs(error_of(row) or 0.0)


def _errors(name: str, rows: list[Row]) -> str:
    off = [_off(row) for row in rows]
    near = sum(error <= FAR for error in off) / len(off)
    fast = sum(_is_too_fast(row) for row in rows)
    shown = f"{median(off):>9.1%}{mean(off):>9.1%}{near:>9.0%}{fast:>10}"
    return f"{name:12}{len(rows):>6}{shown}"


def _is_too_fast(row: Row) -> bool:
    more_is_slower = row["unit"] in ("s", "GiB")
    return ((error_of(row) or 0.0) < 0) == more_is_slower
