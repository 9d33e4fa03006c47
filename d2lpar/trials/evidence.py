"""What a run looked like, as plain data that travels from the answer's process to its picture."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..timeline import Timeline

MOST_SPANS = 600
HOST = "host"
FINEST = 400  # parts of the width that can be told apart


def gantt_of(
    timeline: Timeline, *, host: bool = False, devices: Collection[str] = (), share: float = 1.0
) -> dict:
    """What GPUs (all, or some) and the host did, in microseconds, in a first share of the time.

    Pieces of work so close that a chart cannot tell them apart are one.
    """
    kinds = ("compute", "copy", "collective")
    spans = [
        span
        for span in timeline
        if (span.kind in kinds and span.device != HOST)
        or (host and span.kind in ("dispatch", "wait", "host"))
    ]
    start_s = min((s.start_s for s in spans), default=0.0)
    length_s = share * (max((s.end_s for s in spans), default=0.0) - start_s)
    spans = [
        span
        for span in spans
        if span.end_s <= start_s + length_s * (1 + 1e-9) and (not devices or span.device in devices)
    ]
    gap_s = length_s / FINEST
    rows: list[list] = []
    last: dict[tuple, list] = {}
    for s in sorted(spans, key=lambda s: s.start_s):
        row = (s.device, "" if s.device == HOST else s.stream, s.kind)
        before = last.get(row)
        if before is not None and s.start_s - before[4] <= gap_s:
            before[4] = max(before[4], s.end_s)
        else:
            last[row] = [*row, s.start_s, s.end_s]
            rows.append(last[row])
    shown = [[*row[:3], *(round(1e6 * (t - start_s), 1) for t in row[3:])] for row in rows]
    return {"kind": "gantt", "clock": timeline.clock, "spans": shown[:MOST_SPANS]}


def schedule_of(timeline: Timeline, note: str = "") -> dict:
    """The passes of a pipeline, with their names; `note` is written beside the title."""
    rows = [
        [s.device, s.name, round(1e6 * s.start_s, 2), round(1e6 * s.end_s, 2)]
        for s in timeline
        if s.kind == "compute"
    ]
    run = {"kind": "schedule", "clock": timeline.clock, "spans": rows}
    return {**run, "note": note} if note else run


def memory_of(timeline: Timeline, limit_bytes: float, *, device: str = "") -> dict:
    """What the tensors of a GPU (of several, of one) occupy, in the order of the program, and what
    it has."""
    held = [sample.bytes for sample in timeline.memory if device in ("", sample.device)]
    return {"kind": "memory", "clock": timeline.clock, "points": held, "limit": limit_bytes}


def bars_of(bars: Mapping[str, Mapping[str, float]], unit: str) -> dict:
    """Stacked bars: {bar: {part: value}}."""
    return {"kind": "bars", "unit": unit, "bars": {k: dict(v) for k, v in bars.items()}}
