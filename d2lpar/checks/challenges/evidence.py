"""What a run looked like, as plain data that travels from the grader's process to its picture."""

from __future__ import annotations

from collections.abc import Mapping

from ...timeline import Timeline

MOST_SPANS = 1500
HOST = "host"


def gantt_of(timeline: Timeline, *, host: bool = False, start_s: float | None = None) -> dict:
    """The spans of GPUs (and of the host), in microseconds from the start."""
    kinds = ("compute", "copy", "collective")
    spans = [
        span
        for span in timeline
        if (span.kind in kinds and span.device != HOST)
        or (host and span.kind in ("dispatch", "wait", "host"))
    ][:MOST_SPANS]
    start_s = min((s.start_s for s in spans), default=0.0) if start_s is None else start_s
    rows = [
        [
            s.device,
            s.stream if s.device != HOST else "",
            s.kind,
            round(1e6 * (s.start_s - start_s), 2),
            round(1e6 * (s.end_s - start_s), 2),
        ]
        for s in spans
    ]
    return {"kind": "gantt", "clock": timeline.clock, "spans": rows}


def schedule_of(timeline: Timeline) -> dict:
    """The passes of a pipeline, with their names."""
    rows = [
        [s.device, s.name, round(1e6 * s.start_s, 2), round(1e6 * s.end_s, 2)]
        for s in timeline
        if s.kind == "compute"
    ]
    return {"kind": "schedule", "clock": timeline.clock, "spans": rows}


def memory_of(timeline: Timeline, limit_bytes: float) -> dict:
    """What the tensors of the first GPU occupy, and what it has."""
    own = sorted((s.time_s, s.bytes) for s in timeline.memory)
    start_s = own[0][0] if own else 0.0
    points = [[round(1e6 * (t - start_s), 1), b] for t, b in own]
    return {"kind": "memory", "clock": timeline.clock, "points": points, "limit": limit_bytes}


def bars_of(bars: Mapping[str, Mapping[str, float]], unit: str) -> dict:
    """Stacked bars: {bar: {part: value}}."""
    return {"kind": "bars", "unit": unit, "bars": {k: dict(v) for k, v in bars.items()}}


def lines_of(points: list[float], xlabel: str, ylabel: str) -> dict:
    """A curve over 1, 2, 3 and so on."""
    return {"kind": "lines", "points": points, "xlabel": xlabel, "ylabel": ylabel}
