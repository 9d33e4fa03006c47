"""Gantt charts: what ran where and when, drawn from a timeline's spans alone."""

import itertools
import math
import re
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

from . import texts
from .picture import DPI, Picture
from .style import (
    CURVE_STYLES,
    DARK_KINDS,
    FONT_PT,
    INK,
    KIND_STYLES,
    OTHER_KIND_STYLES,
    PALE,
    PASS_STYLES,
    SMALL_PT,
    VERMILION,
    dress,
    legend_above,
)

LINE_PX, ROW_PX, MEMORY_PX = 26, 44, 110
BAR_HEIGHT = 0.72  # of a row
MANY_BARS = 500  # of one kind: no edges and hatches any more, which would hide them
THIN_PX = 5
FINEST = 4000  # parts of the width that can be told apart
MANY_ARROWS = 40
ARROW_PX = 8  # the width of an arrow's head
KEY_PX = 150  # for an entry of the legend
CHAIN_COLOR = VERMILION
STYLES = {**KIND_STYLES, **PASS_STYLES}
NAMES = {**texts.KINDS, **texts.PASSES}
ARROW = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}


def gantt(
    timeline,
    *,
    ax: Axes | None = None,
    window_s: tuple[float, float] | None = None,
    title: str = "",
    note: str | None = None,
    width_px: int = 760,
    height_px: int | None = None,
    critical_path: bool = False,
    memory: bool = False,
) -> Figure:
    """Draw what ran where and when: a row a (device, stream), a bar a span, a colour a kind.

    `timeline.spans` holds objects with `device`, `stream`, `kind`, `name`, `start_s` and `end_s`;
    the host is on top, then the devices in order, then what only carries copies (links). Arrows
    show where copies go, if they have a `target`, are not too many, and do not cover each other.
    Time counts from the first span; `window_s` (start, end) shows a part. `critical_path=True`
    marks the chain of spans that explains the length, `memory=True` adds what tensors occupy.
    `note` defaults to `timeline.clock`, which says whether the times are simulated or measured.
    Returns the figure: a `Picture`, or that of `ax`. Raises ValueError if there is nothing to draw,
    or for the memory of a chart on given axes.
    """
    if memory and ax is not None:
        raise ValueError(texts.ERROR_MEMORY_AXES)
    spans = spans_within(timeline.spans, window_s)
    if not spans:
        raise ValueError(texts.ERROR_NO_SPANS)
    scale = TimeScale.of(spans, window_s)
    rows = rows_of(spans)
    note = str(getattr(timeline, "clock", "")) if note is None else note
    time_label = texts.TIME.format(unit=scale.unit)
    memory_ax = None
    if ax is not None:
        # Other people's figures have no place for notes.
        time_label = texts.joined(time_label, note)
    else:
        keys = len({span.kind for span in spans}) + critical_path
        height_px = height_px or (
            104 + LINE_PX * legend_lines(keys, width_px) + ROW_PX * len(rows) + MEMORY_PX * memory
        )
        ax, memory_ax = _axes(rows, note=note, size_px=(width_px, height_px), memory=memory)
        length = f"{scale.length:.3g} {scale.unit}"
        ax.figure.alt = texts.GANTT_ALT.format(
            summary=ax.figure.summary, spans=len(spans), length=length
        )
    place_rows(ax, rows)
    ax.set(xlim=(0, scale.length or 1))
    (memory_ax or ax).set_xlabel(time_label)
    ax.set_title(title, loc="left", size=FONT_PT, color=INK)
    ax.grid(axis="x", color=PALE)
    bars = _bars(spans, rows, scale)
    keys = _draw_bars(ax, bars)
    _draw_arrows(ax, spans, rows, scale)
    if critical_path:
        chain = spans_within(timeline.critical_path().spans, window_s)
        keys.append(_draw_chain(ax, chain, rows, scale))
    if memory_ax is not None:
        _draw_memory(memory_ax, timeline.memory, scale)
    explain(ax.figure, keys)
    _name_bars(ax, bars)
    return ax.figure


def _axes(rows, *, note: str, size_px, memory: bool) -> tuple[Axes, Axes | None]:
    summary = texts.GANTT.format(rows=", ".join(map(row_name, rows)))
    picture = Picture(summary=summary, note=note, size_px=size_px)
    if not memory:
        return dress(picture.add_subplot()), None
    heights = ROW_PX * len(rows), MEMORY_PX
    top, bottom = picture.subplots(2, 1, sharex=True, height_ratios=heights)
    return dress(top), dress(bottom)


# Time and rows


@dataclass(frozen=True)
class TimeScale:
    """What is shown, from `start_s` to `end_s`, in a `unit` of which a second has `per_s`."""

    start_s: float
    end_s: float
    unit: str
    per_s: float

    @classmethod
    def of(cls, spans, window_s: tuple[float, float] | None = None) -> "TimeScale":
        start_s, end_s = window_s or (-math.inf, math.inf)
        start_s = max(start_s, min(span.start_s for span in spans))
        end_s = min(end_s, max(span.end_s for span in spans))
        return cls(start_s, end_s, *_time_unit(end_s - start_s))

    @property
    def length(self) -> float:
        return (self.end_s - self.start_s) * self.per_s

    def x(self, time_s: float) -> float:
        """Where a moment is drawn, at most at the edge of what is shown."""
        return (min(max(time_s, self.start_s), self.end_s) - self.start_s) * self.per_s


def spans_within(spans, window_s: tuple[float, float] | None) -> list:
    start_s, end_s = window_s or (-math.inf, math.inf)
    return [span for span in spans if span.end_s >= start_s and span.start_s <= end_s]


def rows_of(spans) -> list[tuple]:
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


def row_name(row: tuple) -> str:
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


def place_rows(ax: Axes, rows) -> None:
    """Name the rows from top to bottom."""
    ax.set(ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), labels=[row_name(row) for row in rows])


def explain(figure: Figure, keys: list) -> None:
    """The legend, in as many lines as the width asks for."""
    lines = legend_lines(len(keys), figure.get_figwidth() * DPI)
    legend_above(figure, columns=math.ceil(len(keys) / lines), handles=keys)


def legend_lines(keys: int, width_px: float) -> int:
    return math.ceil(keys * KEY_PX / width_px)


# Bars


def _bars(spans, rows, scale: TimeScale) -> dict[str, list[tuple]]:
    """For each kind its bars (left, right, row, name), cut to the window; the known kinds first."""
    row_of = {row: i for i, row in enumerate(rows)}
    bars = {kind: [] for kind in kinds_in_order({span.kind for span in spans})}
    for span in spans:
        row = row_of[span.device, span.stream]
        bars[span.kind].append((scale.x(span.start_s), scale.x(span.end_s), row, span.name))
    return bars


def kinds_in_order(kinds: set[str]) -> list[str]:
    return [kind for kind in (*STYLES, *sorted(kinds - set(STYLES))) if kind in kinds]


def merged(boxes: list[tuple], gap: float) -> list[tuple]:
    """Boxes (left, right, row, …) of which those of a row that are at most `gap` apart are one."""
    joined: list[tuple] = []
    for left, right, row, *_ in sorted(boxes, key=lambda box: (str(box[2]), box[0])):
        if joined and joined[-1][2] == row and left - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], right), row, "")
        else:
            joined.append((left, right, row, ""))
    return joined


def _draw_bars(ax: Axes, bars: dict[str, list[tuple]]) -> list[Patch]:
    """One collection a kind: thousands of bars are drawn at the cost of a few artists."""
    keys = []
    finest = np.diff(ax.get_xlim())[0] / FINEST
    for kind, boxes in bars.items():
        many = len(boxes) > MANY_BARS
        style = bar_style(kind, many=many)
        boxes = merged(boxes, finest) if many else boxes
        drawn = PolyCollection(corners(boxes), **style)
        drawn.set_edgecolor(edges(ax, boxes, style))
        ax.add_collection(drawn, autolim=False)
        keys.append(Patch(**style))
    return keys


def bar_style(kind: str, *, many: bool) -> dict:
    """What bars of a kind look like, and their entry in the legend."""
    color, hatch = _kind_style(kind)
    edge, hatch = (color, "") if many else ("white", hatch)
    style = {"facecolor": color, "edgecolor": edge, "hatch": hatch, "linewidth": 0.5}
    return {**style, "label": NAMES.get(kind, kind)}


def _kind_style(kind: str) -> tuple[str, str]:
    """Colour and hatch of a kind; one that is new to this module has the same in every chart."""
    if kind in STYLES:
        return STYLES[kind]
    return OTHER_KIND_STYLES[sum(kind.encode()) % len(OTHER_KIND_STYLES)]


def edges(ax: Axes, boxes: list[tuple], style: dict) -> list[str]:
    """White ones tell neighbours apart, but would wash out bars thinner than themselves."""
    thin = THIN_PX * np.diff(ax.get_xlim())[0] / (ax.figure.get_figwidth() * DPI)
    return [
        style["facecolor"] if right - left < thin else style["edgecolor"]
        for left, right, *_ in boxes
    ]


def corners(boxes: list[tuple]) -> list[list[tuple[float, float]]]:
    half = BAR_HEIGHT / 2
    return [
        [(left, y - half), (right, y - half), (right, y + half), (left, y + half)]
        for left, right, y, *_ in boxes
    ]


def _name_bars(ax: Axes, bars: dict[str, list[tuple]]) -> None:
    """Write the name into each bar that has room for it."""
    ax.figure.draw_without_rendering()  # the layout decides how wide a bar is
    px_per_unit = ax.bbox.width / np.diff(ax.get_xlim())[0]
    widths_px = _WidthsOfNames(ax.figure)
    for kind, boxes in bars.items():
        color, hatch = _kind_style(kind)
        ink = "white" if color in DARK_KINDS else INK
        plate = {"fc": color, "ec": "none", "pad": 1} if hatch else None
        for left, right, row, name in boxes:
            if name and widths_px[name] < (right - left) * px_per_unit:
                ax.text(
                    (left + right) / 2, row, name, ha="center", va="center", size=SMALL_PT,
                    color=ink, bbox=plate, clip_on=True,
                )  # fmt: skip


class _WidthsOfNames(dict):
    """How wide each name is with a little room at its sides, in pixels; measured once."""

    def __init__(self, figure: Figure) -> None:
        self._px_per_pt = figure.dpi / 72

    def __missing__(self, name: str) -> float:
        path = TextPath((0, 0), name, size=SMALL_PT, usetex=False)
        self[name] = (path.get_extents().width + SMALL_PT / 5) * self._px_per_pt
        return self[name]


# What joins bars


def _draw_arrows(ax: Axes, spans, rows, scale: TimeScale) -> None:
    """From the end of each copy to the first row of the device that it goes to."""
    first_row: dict[str, int] = {}
    for i, (device, _) in enumerate(rows):
        first_row.setdefault(device, i)
    ways = [
        (scale.x(span.end_s), rows.index((span.device, span.stream)), first_row[span.target])
        for span in spans
        if span.kind == "copy"
        and getattr(span, "target", "") not in ("", "host", span.device)
        and span.target in first_row
        and span.end_s <= scale.end_s
    ]
    for x, start, end in _apart(ax, ways) if len(ways) <= MANY_ARROWS else ():
        edge = math.copysign(BAR_HEIGHT / 2, end - start)
        ax.annotate("", (x, end - edge), (x, start + edge), arrowprops=ARROW, zorder=4)


def _apart(ax: Axes, ways: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Without those that would cover the one before them, between the same rows."""
    gap = ARROW_PX * np.diff(ax.get_xlim())[0] / (ax.figure.get_figwidth() * DPI)
    kept, last = [], {}
    for x, start, end in sorted(ways):
        if x - last.get((start, end), -math.inf) >= gap:
            kept.append((x, start, end))
            last[start, end] = x
    return kept


def _draw_chain(ax: Axes, chain, rows, scale: TimeScale) -> Line2D:
    """A line along the lower edges of the spans, and from each to the next."""
    xs, ys = [], []
    for span in chain:
        y = rows.index((span.device, span.stream)) + BAR_HEIGHT / 2
        xs += [scale.x(span.start_s), scale.x(span.end_s)]
        ys += [y, y]
    style = {"color": CHAIN_COLOR, "linewidth": 2.6, "label": texts.CRITICAL_PATH}
    line = Line2D(xs, ys, solid_joinstyle="round", zorder=3, **style)
    ax.add_line(line)
    return Line2D([], [], **style)


def _draw_memory(ax: Axes, samples, scale: TimeScale) -> None:
    """A step curve a device."""
    devices = sorted({sample.device for sample in samples}, key=_natural)
    styles = itertools.cycle(style for style in CURVE_STYLES if style[0] != CHAIN_COLOR)
    unit, per_byte = _memory_unit(max((sample.bytes for sample in samples), default=0))
    for device in devices:
        own = sorted((s for s in samples if s.device == device), key=lambda s: s.time_s)
        held = [s.bytes for s in own if s.time_s <= scale.start_s][-1:] or [0]
        shown = [s for s in own if scale.start_s < s.time_s <= scale.end_s]
        held += [s.bytes for s in shown]
        xs = [0, *(scale.x(s.time_s) for s in shown), scale.length]
        ys = [nbytes / per_byte for nbytes in (*held, held[-1])]
        color, line, _ = next(styles)
        label = texts.joined(texts.MEMORY, device)
        ax.plot(xs, ys, line, color=color, drawstyle="steps-post", linewidth=2, label=label)
    highest = max((max(line.get_ydata()) for line in ax.lines), default=0)
    ax.set_ylim(0, 1.5 * highest or 1)  # with room for the legend
    ax.set_ylabel(unit, size=FONT_PT, color=INK)
    ax.grid(axis="x", color=PALE)
    if devices:
        ax.legend(
            loc="upper left", ncols=len(devices), frameon=False, fontsize=SMALL_PT, labelcolor=INK,
            handlelength=1.6, borderpad=0.1,
        )  # fmt: skip


def _memory_unit(nbytes: int) -> tuple[str, float]:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return unit, size
    return "bytes", 1
