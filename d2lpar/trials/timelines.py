"""An answer that reads a timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..timeline import Span, Timeline


def timeline_of(spans: Sequence[tuple[str, str, float, float]]) -> Timeline:
    """Of spans: device, kind, start and end in milliseconds."""
    made = [Span(d, k, k, "", 1e-3 * a, 1e-3 * b) for d, k, a, b in spans]
    return Timeline("simulated", made)


def read_timeline(answer: Callable, spans: Sequence[tuple[str, str, float, float]]) -> object:
    """What it makes of one."""
    return answer(timeline_of(spans))
