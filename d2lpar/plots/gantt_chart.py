"""Gantt charts: what ran where and when, drawn from a timeline's spans alone."""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

from ..timeline import MemorySample, Span, Timeline
from ..timeline.spans import Row, by_number, rows_of
from ..timeline.timeline import MEASURED
from ..timeline.traces.page import page_data
from ..timeline.traces.page.colors import DARK, of_kind
from ..timeline.traces.page.texts import row_name
from . import texts
from .picture import DPI, Picture
from .style import (
    CURVE_STYLES,
    FONT_PT,
    INK,
    KIND_STYLES,
    OTHER_HATCHES,
    PALE,
    PASS_STYLES,
    SMALL_PT,
    VERMILION,
    dress,
    figure_of,
    legend_above,
)
from .widgets.timeline_view import can_be_viewed, timeline_view

LINE_PX, ROW_PX, MEMORY_PX = 26, 44, 110
BAR_HEIGHT = 0.72  # of a row
MANY_BARS = 500  # of one kind: no edges and hatches any more, which would hide them
THIN_PX = 5
FINEST = 4000  # parts of the width that can be told apart
NAME_SIZES_PT = (SMALL_PT, 8.0)  # of numbers in passes: the second where the first has no room
NAME_MARGIN = 0.4  # beside a name, both sides together, in parts of its size
MANY_ARROWS = 40
FEW_DEVICES = 2
ARROW_PX = 8  # the width of an arrow's head
KEY_PX = 150  # for an entry of the legend
CHAIN_COLOR = VERMILION
STYLES = {**KIND_STYLES, **PASS_STYLES}
NAMES = {**texts.KINDS, **texts.PASSES}
ARROW = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}

Bar = tuple[float, float, int, str]  # left, right, number of the row, name


class GanttOptions(TypedDict, total=False):
    """What `gantt` can be told by way of another chart."""

    window_s: tuple[float, float] | None
    note: str | None
    height_px: int | None
    critical_path: bool
    memory: bool


class BarStyle(TypedDict):
    """What bars look like, as matplotlib's patches and collections take it."""

    facecolor: str
    edgecolor: str
    hatch: str
    linewidth: float
    label: str


def gantt(
    timeline: Timeline,
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

    The host is on top, then the devices in order, then what only carries copies (links). Arrows
    show where copies go, if that is known, they are not too many, and do not cover each other. Time
    counts from the first span; `window_s` (start, end) shows a part. `critical_path=True`
    marks the chain of spans that explains the length, `memory=True` adds what tensors occupy.
    `note` defaults to `timeline.clock`, which says whether the times are simulated or measured.
    While a kernel runs, a notebook shows the picture as a view of the whole timeline, into which
    one can zoom; the picture's text has a digest of the spans, unless they were measured.
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
    note = timeline.clock if note is None else note
    time_label = texts.TIME.format(unit=scale.unit)
    memory_ax = None
    if ax is not None:
        # Other people's figures have no place for notes.
        time_label = texts.joined(time_label, note)
    else:
        kinds = len({span.kind for span in spans}) + critical_path
        height_px = height_px or (
            104 + LINE_PX * legend_lines(kinds, width_px) + ROW_PX * len(rows) + MEMORY_PX * memory
        )
        picture = _picture(rows, spans, scale, note=note, size_px=(width_px, height_px))
        if timeline.clock != MEASURED:
            picture.summary = texts.joined(picture.summary, page_data.digest(spans))
        if can_be_viewed(timeline):
            picture.view = partial(
                timeline_view,
                timeline,
                title=title,
                note=note,
                window_s=window_s,
                show_chain=critical_path,
            )
        ax, memory_ax = _axes(picture, len(rows), memory=memory)
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
    draw_legend(figure_of(ax), keys)
    _name_bars(ax, bars)
    return figure_of(ax)


def _picture(
    rows: list[Row],
    spans: Sequence[Span],
    scale: "TimeScale",
    *,
    note: str,
    size_px: tuple[int, int],
) -> Picture:
    summary = texts.GANTT.format(rows=", ".join(map(row_name, rows)))
    picture = Picture(summary=summary, note=note, size_px=size_px)
    length = f"{scale.length:.3g} {scale.unit}"
    counted = texts.SPANS.format(spans=len(spans), length=length)
    picture.alt = "; ".join((picture.summary, counted))
    return picture


def _axes(picture: Picture, rows: int, *, memory: bool) -> tuple[Axes, Axes | None]:
    """Axes for the bars, and those for the memory under them."""
    if not memory:
        return dress(picture.add_subplot()), None
    heights = ROW_PX * rows, MEMORY_PX
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
    def of(cls, spans: Collection[Span], window_s: tuple[float, float] | None) -> "TimeScale":
        """The scale of all spans, as far as they lie in the window."""
        start_s, end_s = window_s or (-math.inf, math.inf)
        return cls.between(
            max(start_s, min(span.start_s for span in spans)),
            min(end_s, max(span.end_s for span in spans)),
        )

    @classmethod
    def between(cls, start_s: float, end_s: float) -> "TimeScale":
        """The scale in whose unit the time between two moments reads well."""
        return cls(start_s, end_s, *_time_unit(end_s - start_s))

    @property
    def length(self) -> float:
        """How long the time is that is shown, in the unit."""
        return (self.end_s - self.start_s) * self.per_s

    def x(self, time_s: float) -> float:
        """Where a moment is drawn, at most at the edge of what is shown."""
        return (min(max(time_s, self.start_s), self.end_s) - self.start_s) * self.per_s


def spans_within(spans: Iterable[Span], window_s: tuple[float, float] | None) -> list[Span]:
    """The spans of which at least a moment lies in the window; None is all time."""
    start_s, end_s = window_s or (-math.inf, math.inf)
    return [span for span in spans if span.end_s >= start_s and span.start_s <= end_s]


def _time_unit(length_s: float) -> tuple[str, float]:
    """The unit in which a length reads well, and how many of them are a second."""
    for unit, per_s in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if length_s * per_s >= 1:
            return unit, per_s
    return "ns", 1e9


def place_rows(ax: Axes, rows: Sequence[Row]) -> None:
    """Name the rows from top to bottom."""
    ax.set(ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), labels=[row_name(row) for row in rows])


def draw_legend(figure: Figure, keys: Sequence[Artist]) -> None:
    """The legend, in as many lines as the width asks for."""
    lines = legend_lines(len(keys), figure.get_figwidth() * DPI)
    legend_above(figure, columns=math.ceil(len(keys) / lines), entries=keys)


def legend_lines(keys: int, width_px: float) -> int:
    """In how many lines so many entries of a legend fit into a figure's width."""
    return math.ceil(keys * KEY_PX / width_px)


# Bars


def _bars(spans: list[Span], rows: list[Row], scale: TimeScale) -> dict[str, list[Bar]]:
    """For each kind its bars, cut to the window; the known kinds first."""
    row_of = {row: i for i, row in enumerate(rows)}
    bars: dict[str, list[Bar]] = {
        kind: [] for kind in kinds_in_order({span.kind for span in spans})
    }
    for span in spans:
        row = row_of[span.device, span.stream]
        bars[span.kind].append((scale.x(span.start_s), scale.x(span.end_s), row, span.name))
    return bars


def kinds_in_order(kinds: set[str]) -> list[str]:
    """The known kinds as the palette has them, then the others by their names."""
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


def _draw_bars(ax: Axes, bars: dict[str, list[Bar]]) -> list[Artist]:
    """One collection a kind: thousands of bars are drawn at the cost of a few artists."""
    keys: list[Artist] = []
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


def bar_style(kind: str, *, many: bool) -> BarStyle:
    """What bars of a kind look like, and their entry in the legend."""
    color, hatch = _kind_style(kind)
    edge, hatch = (color, "") if many else ("white", hatch)
    return BarStyle(
        facecolor=color, edgecolor=edge, hatch=hatch, linewidth=0.5, label=NAMES.get(kind, kind)
    )


def _kind_style(kind: str) -> tuple[str, str]:
    """Colour and hatch of a kind; one that is new to this module has the same in every chart."""
    color = of_kind(kind)
    return STYLES.get(kind) or (color, OTHER_HATCHES[color])


def edges(ax: Axes, boxes: list[tuple], style: BarStyle) -> list[str]:
    """White ones tell neighbours apart, but would wash out bars thinner than themselves."""
    thin = _px_wide(ax, THIN_PX)
    return [
        style["facecolor"] if right - left < thin else style["edgecolor"]
        for left, right, *_ in boxes
    ]


def _px_wide(ax: Axes, pixels: float) -> float:
    """What so many pixels of the figure's width are on the axis of time."""
    return pixels * np.diff(ax.get_xlim())[0] / (figure_of(ax).get_figwidth() * DPI)


def corners(boxes: list[tuple]) -> list[list[tuple[float, float]]]:
    """The four corners of each box (left, right, row, …), for a `PolyCollection`."""
    half = BAR_HEIGHT / 2
    return [
        [(left, y - half), (right, y - half), (right, y + half), (left, y + half)]
        for left, right, y, *_ in boxes
    ]


def _name_bars(ax: Axes, bars: dict[str, list[Bar]]) -> None:
    """Write the name into each bar that has room for it and for a little white at its sides.

    Passes of one kind have names of one size: the smaller one, if some have no room for the other.
    """
    figure_of(ax).draw_without_rendering()  # the layout decides how wide a bar is
    px_per_unit = ax.bbox.width / np.diff(ax.get_xlim())[0]
    widths_px = _WidthsOfNames(figure_of(ax))
    for kind, boxes in bars.items():
        color, hatch = _kind_style(kind)
        ink = "white" if color in DARK else INK
        plate = {"fc": color, "ec": "none", "pad": 1} if hatch else None
        rooms = [(box, widths_px.share(box, px_per_unit)) for box in boxes if box[3]]
        size_pt = SMALL_PT
        if kind in PASS_STYLES:
            size_pt = _largest_for([share for _, share in rooms])
        for (left, right, row, name), share in rooms:
            if share * size_pt < SMALL_PT:
                ax.text(
                    (left + right) / 2, row, name, ha="center", va="center", size=size_pt,
                    color=ink, bbox=plate, clip_on=True,
                )  # fmt: skip


def _largest_for(shares: list[float]) -> float:
    """The largest size at which all names have room that have it at the smallest."""
    smallest_pt = min(NAME_SIZES_PT)
    named = [share for share in shares if share * smallest_pt < SMALL_PT]
    return next(
        (pt for pt in NAME_SIZES_PT if all(share * pt < SMALL_PT for share in named)), smallest_pt
    )


class _WidthsOfNames(dict[str, float]):
    """How wide each name is with a little room at its sides, in pixels; measured once."""

    def __init__(self, figure: Figure) -> None:
        self._px_per_pt = figure.dpi / 72

    def __missing__(self, name: str) -> float:
        path = TextPath((0, 0), name, size=SMALL_PT, usetex=False)
        self[name] = (path.get_extents().width + NAME_MARGIN * SMALL_PT) * self._px_per_pt
        return self[name]

    def share(self, bar: Bar, px_per_unit: float) -> float:
        """The part of a bar that its name takes; more than 1 if there is no room for it."""
        left, right, _, name = bar
        return self[name] / max((right - left) * px_per_unit, 1e-9)


# What joins bars


def _draw_arrows(ax: Axes, spans: list[Span], rows: list[Row], scale: TimeScale) -> None:
    """From the end of each copy to the first row of the device that it goes to."""
    first_row: dict[str, int] = {}
    for i, (device, _) in enumerate(rows):
        first_row.setdefault(device, i)
    arrows = [
        (scale.x(span.end_s), rows.index((span.device, span.stream)), first_row[span.target])
        for span in spans
        if span.kind == "copy"
        and span.target not in ("", "host", span.device)
        and span.target in first_row
        and span.end_s <= scale.end_s
    ]
    for x, start, end in _apart(ax, arrows) if len(arrows) <= MANY_ARROWS else ():
        edge = math.copysign(BAR_HEIGHT / 2, end - start)
        ax.annotate("", (x, end - edge), (x, start + edge), arrowprops=ARROW, zorder=4)


def _apart(ax: Axes, arrows: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Without those that would cover the one before them, between the same rows."""
    gap = _px_wide(ax, ARROW_PX)
    kept: list[tuple[float, int, int]] = []
    last: dict[tuple[int, int], float] = {}
    for x, start, end in sorted(arrows):
        if x - last.get((start, end), -math.inf) >= gap:
            kept.append((x, start, end))
            last[start, end] = x
    return kept


def _draw_chain(ax: Axes, chain: list[Span], rows: list[Row], scale: TimeScale) -> Line2D:
    """A line along the lower edges of the spans, and from each to the next."""
    xs: list[float] = []
    ys: list[float] = []
    for span in chain:
        y = rows.index((span.device, span.stream)) + BAR_HEIGHT / 2
        xs += [scale.x(span.start_s), scale.x(span.end_s)]
        ys += [y, y]
    line = partial(Line2D, color=CHAIN_COLOR, linewidth=2.6, label=texts.CRITICAL_PATH)
    ax.add_line(line(xs, ys, solid_joinstyle="round", zorder=3))
    return line([], [])


def _draw_memory(ax: Axes, samples: Sequence[MemorySample], scale: TimeScale) -> None:
    """A step curve a device."""
    devices = sorted({sample.device for sample in samples}, key=by_number)
    styles = itertools.cycle(style for style in CURVE_STYLES if style[0] != CHAIN_COLOR)
    unit, per_byte = _memory_unit(max((sample.bytes for sample in samples), default=0))
    highest = 0.0
    for device in devices:
        own = sorted((s for s in samples if s.device == device), key=lambda s: s.time_s)
        held = [s.bytes for s in own if s.time_s <= scale.start_s][-1:] or [0]
        shown = [s for s in own if scale.start_s < s.time_s <= scale.end_s]
        held += [s.bytes for s in shown]
        xs = [0, *(scale.x(s.time_s) for s in shown), scale.length]
        ys = [nbytes / per_byte for nbytes in (*held, held[-1])]
        highest = max(highest, *ys)
        color, line, _ = next(styles)
        # The entries stand beside each other: of many there is room for the names alone.
        label = device if len(devices) > FEW_DEVICES else texts.MEMORY_OF.format(device=device)
        ax.plot(xs, ys, line, color=color, drawstyle="steps-post", linewidth=2, label=label)
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
