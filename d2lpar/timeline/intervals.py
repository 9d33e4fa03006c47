"""Sets of moments: what several spans cover together, and what two sets have in common."""

from __future__ import annotations

from collections.abc import Iterable

from .spans import Span

Interval = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Interval]:
    """The disjoint intervals (start_s, end_s) that the spans cover together, in order."""
    covered: list[Interval] = []
    for start, end in sorted((span.start_s, span.end_s) for span in spans):
        if covered and start <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(covered[-1][1], end))
        else:
            covered.append((start, end))
    return covered


def length_s(intervals: Iterable[Interval]) -> float:
    """Seconds that disjoint intervals last together."""
    return sum(end - start for start, end in intervals)


def common_s(first: list[Interval], second: list[Interval]) -> float:
    """Seconds that lie in both of two lists of disjoint intervals in order."""
    seconds, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        start = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        seconds += max(0.0, end - start)
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return seconds
