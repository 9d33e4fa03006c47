"""What the view of a timeline draws: its spans in columns, with what each of them waited for."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from ....locale import label
from ...critical_chain import critical_path
from ...dependencies import TINY_S
from ...spans import MemorySample, Row, Span, rows_of
from . import colors, texts

PS = 1e12  # a second: what the view counts in, whole numbers of which are exact for 2.5 hours
HOST, STREAM, EVENT, AWAITED = 1, 2, 3, 4  # why a span began, or a wait ended: see `texts.WHY`
MOST_EXPLAINED = 200_000  # spans; the chain of more would take longer than a reader waits


def packed(
    clock: str,
    spans: Iterable[Span],
    memory: Iterable[MemorySample] = (),
    *,
    title: str = "",
    note: str = "",
    window_s: tuple[float, float] | None = None,
    show_chain: bool = False,
) -> str:
    """The data as text: JSON, packed by gzip, in base64. The same spans give the same text.

    Rows are those of `rows_of`; times are whole picoseconds from the first start. What is shown at
    first is `window_s` (start, end), without it all. Raises ValueError if there is no span.
    """
    found = data(clock, list(spans), list(memory), window_s=window_s)
    text = json.dumps({**found, "title": title, "note": note, "show_chain": show_chain})
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def digest(spans: Iterable[Span]) -> str:
    """Eight letters that change when a span does, by its place, kind, name and times to 0.1 %."""
    told = hashlib.sha256()
    for span in spans:
        words = span.device, span.stream, span.kind, span.name
        told.update(f"{words} {span.start_s:.3e} {span.end_s:.3e}\n".encode())
    return told.hexdigest()[:8]


def data(
    clock: str,
    spans: list[Span],
    memory: list[MemorySample],
    *,
    window_s: tuple[float, float] | None = None,
) -> dict[str, object]:
    """The same as an object of JSON, but for what is said of all of it."""
    if not spans:
        raise ValueError(
            "there is no span to show: run something while the timeline is recorded first"
        )
    rows = rows_of(spans)
    number = {row: i for i, row in enumerate(rows)}
    ordered = sorted(spans, key=lambda s: (number[s.device, s.stream], s.start_s, s.end_s))
    begin_s = min(span.start_s for span in spans)
    end_s = max(span.end_s for span in spans)

    def ps(time_s: float) -> int:
        return round((time_s - begin_s) * PS)

    names = [label(texts.row_name(row)) for row in rows]
    length = f"{(end_s - begin_s) * 1e3:.4g} ms"
    return {
        "clock": clock,
        "summary": label(
            texts.SUMMARY.format(
                rows=", ".join(names), spans=len(spans), length=length, clock=clock
            )
        ),
        "length": ps(end_s),
        "rows": [[device, name] for (device, _), name in zip(rows, names, strict=True)],
        **_columns(ordered, number, ps),
        "window": [ps(max(begin_s, window_s[0])), ps(min(end_s, window_s[1]))]
        if window_s
        else [0, ps(end_s)],
        "chain": _chain(ordered, number, ps),
        "memory": _curves(memory, ps),
        "texts": _said(texts.VIEW),
    }


def _said(words: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the reader's language."""
    return {
        key: label(text) if isinstance(text, str) else _said(text) for key, text in words.items()
    }


class _Names(dict[Hashable, int]):
    """A number for each, in the order in which they come."""

    def __missing__(self, name: Hashable) -> int:
        self[name] = len(self)
        return self[name]


def _columns(
    spans: Sequence[Span], row_numbers: dict[Row, int], ps: Callable[[float], int]
) -> dict[str, object]:
    names, kinds, lines = _Names(), _Names(), _Names()
    lines[""]
    row, start, duration = [], [], []
    last = (-1, 0)
    for span in spans:
        here = row_numbers[span.device, span.stream]
        begin = ps(span.start_s)
        start.append(begin - last[1] if last[0] == here else begin)
        duration.append(max(0, ps(span.end_s) - begin))
        row.append(here)
        last = here, begin
    dispatches = {s.correlation: s for s in spans if s.device == "host" and s.correlation}
    cause, why = _causes(spans)
    columns = {
        "row": row,
        "start": start,
        "duration": duration,
        "kind": [kinds[span.kind] for span in spans],
        "name": [names[span.name] for span in spans],
        "line": [lines[_line(span, dispatches)] for span in spans],
        "bytes": [span.bytes for span in spans],
        "flops": [span.flops for span in spans],
        "cause": cause,
        "why": why,
    }
    return {
        "names": list(names),
        "lines": list(lines),
        "kinds": [
            {
                "kind": kind,
                "label": label({**texts.KINDS, **texts.PASSES}.get(str(kind), str(kind))),
                "color": colors.of_kind(str(kind)),
                "dark": colors.of_kind(str(kind)) in colors.DARK,
            }
            for kind in kinds
        ],
        "spans": columns,
    }


def _line(span: Span, dispatches: dict[int, Span]) -> str:
    """Where the program has queued it."""
    queued = dispatches.get(span.correlation)
    return span.line or (queued.line if queued is not None else "")


def _causes(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """For each span what it waited for, by its number (-1: nothing is known), and why."""
    by_correlation: defaultdict[int, list[int]] = defaultdict(list)
    for i, span in enumerate(spans):
        if span.correlation:
            by_correlation[span.correlation].append(i)
    causes, reasons = [], []
    for i, span in enumerate(spans):
        known: list[tuple[float, int, int]] = []  # when it ended, why, which
        if span.device != "host":
            same_row = i > 0 and _row(spans[i - 1]) == _row(span)
            if same_row:
                known.append((spans[i - 1].end_s, STREAM, i - 1))
            known += [
                (spans[j].end_s, HOST, j)
                for j in by_correlation[span.correlation]
                if span.correlation and spans[j].device == "host"
            ]
            known += _work(spans, span.after, by_correlation, EVENT, but=_row(span))
            known = [each for each in known if each[0] <= span.start_s + TINY_S]
        elif span.kind == "wait":
            known = _work(spans, span.after, by_correlation, AWAITED)
        _, reason, cause = max(known, default=(0.0, 0, -1))
        causes.append(cause)
        reasons.append(reason)
    return causes, reasons


def _work(
    spans: Sequence[Span],
    after: Iterable[int],
    by_correlation: dict[int, list[int]],
    reason: int,
    *,
    but: Row | None = None,
) -> list[tuple[float, int, int]]:
    """What devices had to finish, but for what a row has itself."""
    found = (j for number in after for j in by_correlation.get(number, ()))
    return [
        (spans[j].end_s, reason, j)
        for j in found
        if spans[j].device != "host" and _row(spans[j]) != but
    ]


def _row(span: Span) -> Row:
    return span.device, span.stream


def _chain(
    spans: Sequence[Span], number: dict[Row, int], ps: Callable[[float], int]
) -> list[tuple[int, int, int]]:
    if len(spans) > MOST_EXPLAINED:
        return []
    chain = critical_path(spans)
    return [(number[_row(span)], ps(span.start_s), ps(span.end_s)) for span in chain]


def _curves(memory: Iterable[MemorySample], ps: Callable[[float], int]) -> list[dict[str, object]]:
    by_device: defaultdict[str, list[MemorySample]] = defaultdict(list)
    for sample in memory:
        by_device[sample.device].append(sample)
    curves: list[dict[str, object]] = []
    for i, (device, samples) in enumerate(sorted(by_device.items())):
        samples.sort(key=lambda sample: sample.time_s)
        curves.append(
            {
                "device": device,
                "times": [ps(sample.time_s) for sample in samples],
                "bytes": [sample.bytes for sample in samples],
                "color": colors.CURVES[i % len(colors.CURVES)],
            }
        )
    return curves
