"""Counts and sums over spans, by kind, name or device: what a table of a run shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .spans import Span

GROUPS = ("device", "kind", "name")


@dataclass(frozen=True, slots=True)
class Total:
    """All spans of one group. `share` is that of the seconds of all groups, 0 to 1."""

    group: str
    count: int
    total_s: float
    share: float
    bytes: int
    flops: int

    @property
    def mean_s(self) -> float:
        return self.total_s / self.count


class Totals:
    """Sums that grow with each span, in memory that grows with the different names only."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._sums: dict[tuple[str, str, str], list[float]] = {}
        for span in spans:
            self.add(span)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Totals) and self._sums == other._sums

    __hash__ = None

    @property
    def count(self) -> int:
        return sum(sums[0] for sums in self._sums.values())

    def add(self, span: Span) -> None:
        self._merge(
            (span.device, span.kind, span.name), (1, span.duration_s, span.bytes, span.flops)
        )

    def __add__(self, other: Totals) -> Totals:
        both = Totals()
        for totals in (self, other):
            for key, sums in totals._sums.items():
                both._merge(key, sums)
        return both

    def _merge(self, key: tuple[str, str, str], more: Iterable[float]) -> None:
        sums = self._sums.setdefault(key, [0, 0.0, 0, 0])
        for i, value in enumerate(more):
            sums[i] += value

    def by(self, group: str) -> list[Total]:
        """A `Total` a device, kind or name, the longest first.

        Raises ValueError for another group.
        """
        if group not in GROUPS:
            raise ValueError(f"spans are summed by one of {', '.join(GROUPS)}, not {group!r}")
        grouped: dict[str, list[float]] = {}
        for key, sums in self._sums.items():
            into = grouped.setdefault(key[GROUPS.index(group)], [0, 0.0, 0, 0])
            for i, value in enumerate(sums):
                into[i] += value
        all_s = sum(sums[1] for sums in grouped.values())
        rows = [
            Total(name, count, total_s, total_s / all_s if all_s else 0.0, nbytes, flops)
            for name, (count, total_s, nbytes, flops) in grouped.items()
        ]
        return sorted(rows, key=lambda row: (-row.total_s, row.group))


def table(rows: list[Total]) -> str:
    """The rows as text: group, count, total and mean seconds, share."""
    cells = [("", "count", "total", "mean", "share")]
    cells += [
        (row.group, str(row.count), readable(row.total_s), readable(row.mean_s), f"{row.share:.1%}")
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def readable(seconds: float) -> str:
    """Three digits and the unit that fits: "1.25 ms"."""
    for unit, per_s in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * per_s >= 1:
            return f"{seconds * per_s:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
