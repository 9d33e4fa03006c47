"""Counts and sums over spans, by kind, name or device: what a table of a run shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from . import formatting
from .formatting import seconds_text
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
        """Seconds of one span, on average."""
        return self.total_s / self.count


@dataclass(slots=True)
class _Sums:
    count: int = 0
    total_s: float = 0.0
    bytes: int = 0
    flops: int = 0

    def add(self, count: int, seconds: float, nbytes: int, flops: int) -> None:
        self.count += count
        self.total_s += seconds
        self.bytes += nbytes
        self.flops += flops

    def merge(self, other: _Sums) -> None:
        self.add(other.count, other.total_s, other.bytes, other.flops)


class Totals:
    """Sums that grow with each span, in memory that grows with the different names only."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._sums: defaultdict[tuple[str, str, str], _Sums] = defaultdict(_Sums)
        for span in spans:
            self.add(span)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Totals) and self._sums == other._sums

    @property
    def count(self) -> int:
        """How many spans were added."""
        return sum(sums.count for sums in self._sums.values())

    def add(self, span: Span) -> None:
        """Count one more span."""
        sums = self._sums[span.device, span.kind, span.name]
        sums.add(1, span.duration_s, span.bytes, span.flops)

    def __add__(self, other: Totals) -> Totals:
        both = Totals()
        for totals in (self, other):
            for key, sums in totals._sums.items():
                both._sums[key].merge(sums)
        return both

    def by(self, group: str) -> list[Total]:
        """A `Total` a device, kind or name, the longest first.

        Raises ValueError for another group.
        """
        if group not in GROUPS:
            raise ValueError(f"spans are summed by one of {', '.join(GROUPS)}, not {group!r}")
        grouped: defaultdict[str, _Sums] = defaultdict(_Sums)
        for key, sums in self._sums.items():
            grouped[key[GROUPS.index(group)]].merge(sums)
        all_s = sum(sums.total_s for sums in grouped.values())
        rows = [
            Total(name, s.count, s.total_s, s.total_s / all_s if all_s else 0.0, s.bytes, s.flops)
            for name, s in grouped.items()
        ]
        return sorted(rows, key=lambda row: (-row.total_s, row.group))


def table(rows: list[Total]) -> str:
    """The rows as text: group, count, total and mean seconds, share."""
    cells = [("", "count", "total", "mean", "share")]
    cells += [
        (
            row.group,
            str(row.count),
            seconds_text(row.total_s),
            seconds_text(row.mean_s),
            f"{row.share:.1%}",
        )
        for row in rows
    ]
    return "\n".join(formatting.table(cells))
