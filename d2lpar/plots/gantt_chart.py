"""Gantt charts: what ran where and when, drawn from a timeline's spans alone."""

import math
import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from . import texts
from .picture import Picture
from .style import (
    DARK_KINDS,
    FONT_PT,
    INK,
    KIND_STYLES,
    OTHER_KIND_STYLES,
    PALE,
    SMALL_PT,
    dress,
    legend_above,
)

BAR_HEIGHT = 0.72  # of a row
MANY_BARS = 500  # of one kind: no edges and hatches any more, which would hide them


def gantt(
    timeline,
    *,
    ax: Axes | None = None,
    window_s: tuple[float, float] | None = None,
    title: str = "",
    note: str | None = None,
    width_px: int = 760,
) -> Figure:
    """Draw what ran where and when: a row a (device, stream), a bar a span, a colour a kind.

    `timeline.spans` holds objects with `device`, `stream`, `kind`, `name`, `start_s` and `end_s`;
    the host is on top, then the devices in order, then what only carries copies (links). Time
    counts from the first span shown; `window_s` (start, end) shows a part. `note` defaults to
    `timeline.clock`, which says whether the times are simulated or measured. Returns the figure:
    a `Picture`, or that of `ax`. Raises ValueError if there is nothing to draw.
    """
    start_s, end_s = window_s or (-math.inf, math.inf)
    spans = [span for span in timeline.spans if span.end_s >= start_s and span.start_s <= end_s]
    if not spans:
        raise ValueError(texts.ERROR_NO_SPANS)
    start_s = max(start_s, min(span.start_s for span in spans))
    end_s = min(end_s, max(span.end_s for span in spans))
    unit, per_s = _time_unit(end_s - start_s)
    rows = _rows(spans)
    bars = _bars(spans, rows, start_s=start_s, end_s=end_s, per_s=per_s)
    note = str(getattr(timeline, "clock", "")) if note is None else note
    time_label = texts.TIME.format(unit=unit)
    if ax is not None:
        # Other people's figures have no place for notes.
        time_label = texts.joined(time_label, note)
    else:
        ax = _gantt_axes(rows, note=note, width_px=width_px)
        length = f"{(end_s - start_s) * per_s:.3g} {unit}"
        ax.figure.alt = texts.GANTT_ALT.format(
            summary=ax.figure.summary, spans=len(spans), length=length
        )
    ax.set(xlim=(0, (end_s - start_s) * per_s or 1), ylim=(len(rows) - 0.5, -0.5))
    ax.set_xlabel(time_label)
    ax.set_yticks(range(len(rows)), labels=[_row_name(row) for row in rows])
    ax.set_title(title, loc="left", size=FONT_PT, color=INK)
    ax.grid(axis="x", color=PALE)
    _draw_bars(ax, bars)
    _name_bars(ax, bars)
    return ax.figure


def _gantt_axes(rows, *, note: str, width_px: int) -> Axes:
    summary = texts.GANTT.format(rows=", ".join(map(_row_name, rows)))
    picture = Picture(summary=summary, note=note, size_px=(width_px, 130 + 44 * len(rows)))
    return dress(picture.add_subplot())


def _rows(spans) -> list[tuple]:
    """The (device, stream) pairs from top to bottom: host, devices, links."""
    computing = {str(span.device) for span in spans if span.kind == "compute"}

    def place(row):
        device, stream = map(str, row)
        is_host = re.match(r"host|cpu", device) is not None
        rank = 0 if is_host else 1 if device in computing else 2
        return rank, _natural(device), _natural(stream)

    return sorted({(span.device, span.stream) for span in spans}, key=place)


def _natural(text: str) -> list:
    """A sort key that puts vgpu:2 before vgpu:10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _row_name(row: tuple) -> str:
    device, stream = row
    if isinstance(stream, int):
        stream = texts.STREAM.format(number=stream)
    return texts.joined(str(device), str(stream or ""))


def _time_unit(length_s: float) -> tuple[str, float]:
    """The unit in which a length reads well, and how many of them are a second."""
    for unit, per_s in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if length_s * per_s >= 1:
            return unit, per_s
    return "ns", 1e9


def _bars(spans, rows, *, start_s: float, end_s: float, per_s: float) -> dict[str, list[tuple]]:
    """For each kind its bars (left, right, row, name), cut to the window; the known kinds first."""
    row_of = {row: i for i, row in enumerate(rows)}
    kinds = {span.kind for span in spans}
    bars = {kind: [] for kind in (*KIND_STYLES, *sorted(kinds - set(KIND_STYLES))) if kind in kinds}
    for span in spans:
        left, right = max(span.start_s, start_s), min(span.end_s, end_s)
        row = row_of[span.device, span.stream]
        bars[span.kind].append(
            ((left - start_s) * per_s, (right - start_s) * per_s, row, span.name)
        )
    return bars


def _draw_bars(ax: Axes, bars: dict[str, list[tuple]]) -> None:
    """One collection a kind: thousands of bars are drawn at the cost of a few artists."""
    keys = []
    for kind, boxes in bars.items():
        color, hatch = _kind_style(kind)
        # White edges tell neighbours apart, but would wash out bars thinner than themselves.
        edge, hatch = ("white", hatch) if len(boxes) <= MANY_BARS else (color, "")
        style = {"facecolor": color, "edgecolor": edge, "hatch": hatch, "linewidth": 0.5}
        style["label"] = texts.KINDS.get(kind, kind)
        corners = [_corners(left, right, row) for left, right, row, _ in boxes]
        ax.add_collection(PolyCollection(corners, **style), autolim=False)
        keys.append(Patch(**style))
    legend_above(ax.figure, columns=len(keys), handles=keys)


def _kind_style(kind: str) -> tuple[str, str]:
    """Colour and hatch of a kind; one that is new to this module has the same in every chart."""
    if kind in KIND_STYLES:
        return KIND_STYLES[kind]
    return OTHER_KIND_STYLES[sum(kind.encode()) % len(OTHER_KIND_STYLES)]


def _corners(left: float, right: float, row: int) -> list[tuple[float, float]]:
    top, bottom = row - BAR_HEIGHT / 2, row + BAR_HEIGHT / 2
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _name_bars(ax: Axes, bars: dict[str, list[tuple]]) -> None:
    """Write the name into each bar that has room for it."""
    ax.figure.draw_without_rendering()  # the layout decides how wide a bar is
    px_per_unit = ax.bbox.width / np.diff(ax.get_xlim())[0]
    px_per_character = 0.65 * SMALL_PT * ax.figure.dpi / 72
    for kind, boxes in bars.items():
        color, hatch = _kind_style(kind)
        ink = "white" if color in DARK_KINDS else INK
        plate = {"fc": color, "ec": "none", "pad": 1} if hatch else None
        for left, right, row, name in boxes:
            if 0 < len(name) * px_per_character < (right - left) * px_per_unit:
                ax.text(
                    (left + right) / 2, row, name, ha="center", va="center", size=SMALL_PT,
                    color=ink, bbox=plate, clip_on=True,
                )  # fmt: skip
