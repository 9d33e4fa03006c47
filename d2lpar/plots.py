"""Pictures of a lesson: live curves, Gantt charts, image grids and figures with sliders.

The only module that imports matplotlib and ipywidgets. Figures are made without pyplot, so that
none stays open and the inline backend never shows one twice, and each goes to the notebook as
*one* PNG of fixed size with a `text/plain` that is the same in every run: the form that a strict
nbval compares well. Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color), always
together with a second mark (line style, marker, hatch), on white, so that a dark theme reads too.
"""

import base64
import io
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

__all__ = ["LivePlot", "Picture", "SliderFigure", "gantt", "images", "slider_figure"]

# Everything a reader sees, for translators.
TEXT_LIVE = "Curves of {curves} over {xlabel}"
TEXT_NO_POINTS = "no points yet"
TEXT_GANTT = "Gantt chart of {rows}"
TEXT_GANTT_ALT = "{summary} · {spans} spans in {length}"
TEXT_IMAGES = "{count} labelled images"
TEXT_SLIDERS = "Run this cell to move the sliders: {values}"
TEXT_SLIDER_FIGURE = "Interactive figure"
TEXT_TIME = "time ({unit})"
TEXT_STREAM = "stream {number}"
TEXT_KINDS = {
    "compute": "compute", "copy": "copy", "dispatch": "dispatch", "host": "host",
    "collective": "collective", "wait": "wait",
}  # fmt: skip
ERROR_CURVE = "no curve is named {name!r}: the curves of this plot are {known}"
ERROR_FINITE = "x must be a finite number, not {x!r}"
ERROR_CURVES = "curves must be one or more different names, not {curves!r}"
ERROR_FPS = "max_fps must be positive, not {fps!r}"
ERROR_LIMITS = "{axis} must be two different finite numbers or None, not {limits!r}"
ERROR_CLOSED = "this plot is not open: use it inside `with LivePlot(...) as plot:`"
ERROR_NO_SPANS = "there is no span to draw: run something on the timeline first, or widen window_s"
ERROR_IMAGES = "images need the shape [N, 1, H, W] or [N, H, W] with N >= 1, not {shape}"
ERROR_LABELS = "{images} images need as many labels, not {labels}"
ERROR_NAMES = "label {label} has no name: names holds {count}"
ERROR_CONTROL = "no control can be made for {name}={spec!r}: see ipywidgets.interact's table"

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"
INK, PALE = "#222222", "#D9D9D9"
CURVE_STYLES = (
    (BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"),
    (ORANGE, "-", "v"), (SKY, "--", "P"), (BLACK, "-.", "X"), (YELLOW, ":", "*"),
)  # fmt: skip
KIND_STYLES = {
    "compute": (BLUE, ""),
    "copy": (ORANGE, "//"),
    "dispatch": (PALE, ""),
    "host": (PURPLE, "\\\\"),
    "collective": (GREEN, "xx"),
    "wait": (SKY, ".."),
}
DARK_KINDS = (BLUE, GREEN)
OTHER_KIND_STYLES = ((VERMILION, "--"), (YELLOW, "++"))

BAR_HEIGHT = 0.72  # of a row
MANY_BARS = 500  # of one kind: no edges and hatches any more, which would hide them

FONT_PT, SMALL_PT = 13, 10.5
DPI = 100
SIZE_PX = (700, 400)
FINAL_SCALE = 2  # a picture that stays has this many pixels per pixel shown, for dense screens
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# Callbacks of widgets run in a thread of their own, beside the cell that draws.
_drawing = threading.RLock()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def _encoded(rgba, *, method: Image.Quantize) -> bytes:
    """PNG of pixels [H, W, 4]; 256 colours are plenty for a plot, and a third of the bytes."""
    image = Image.fromarray(np.asarray(rgba)).convert("RGB")
    image = image.quantize(256, method, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def _joined(*parts: str) -> str:
    return " · ".join(filter(None, parts))


class Picture(Figure):
    """A matplotlib figure that a notebook shows as one PNG of `size_px` (width, height).

    `summary` is its `text/plain`: keep out of it what changes from run to run, because nbval
    compares it. `alt` (default: the summary) describes what is to be seen; it travels in the
    output's metadata, which nbval does not compare. `note` is printed small under the axes.
    """

    def __init__(self, *, summary: str, alt: str = "", note: str = "", size_px=SIZE_PX):
        width, height = size_px
        super().__init__((width / DPI, height / DPI), DPI, facecolor="white", layout="constrained")
        self.get_layout_engine().set(w_pad=0.1, h_pad=0.08)
        FigureCanvasAgg(self)
        self.summary = _joined(summary, note)
        self.alt = alt
        if note:
            self.supxlabel(note, x=0.99, ha="right", size=SMALL_PT, color=INK)

    def png(self, *, scale: int = FINAL_SCALE) -> bytes:
        """The picture as PNG, `scale` times `size_px` large."""
        with _drawing:
            self.dpi = DPI * scale
            try:
                self.canvas.draw()
                return _encoded(self.canvas.buffer_rgba(), method=Image.Quantize.MAXCOVERAGE)
            finally:
                self.dpi = DPI

    def bundle(self, png: bytes) -> tuple[dict, dict]:
        """(data, metadata) of the display message that shows `png` in this picture's place."""
        width, height = (round(inches * DPI) for inches in self.get_size_inches())
        data = {"image/png": base64.b64encode(png).decode(), "text/plain": self.summary}
        shown = {"width": width, "height": height, "alt": self.alt or self.summary}
        return data, {"image/png": shown}

    # Not `_repr_mimebundle_`: once pyplot is imported its formatter for figures wins over that.
    def _ipython_display_(self):
        _Place().open(self, self.png())


class _Place:
    """An output of a cell whose picture can be replaced in place."""

    def __init__(self):
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()

    def open(self, picture: Picture, png: bytes) -> None:
        """Add an output to the running cell; all that were opened here follow the updates."""
        data, metadata = picture.bundle(png)
        self._handle.display(data, metadata=metadata, raw=True)

    def update(self, picture: Picture, png: bytes) -> None:
        data, metadata = picture.bundle(png)
        self._handle.update(data, metadata=metadata, raw=True)


def _dress(ax: Axes) -> Axes:
    """Large type and dark ink on white, set on the axes: rcParams are global to all threads."""
    ax.set_facecolor("white")
    ax.tick_params(labelsize=FONT_PT, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    for text in (ax.xaxis.label, ax.yaxis.label, ax.title):
        text.set(fontsize=FONT_PT, color=INK)
    ax.set_axisbelow(True)
    colors, styles, markers = zip(*CURVE_STYLES, strict=True)
    ax.set_prop_cycle(color=colors, linestyle=styles, marker=markers)
    return ax


def _legend_above(figure: Figure, *, columns: int, **entries) -> None:
    figure.legend(
        loc="outside upper left", ncols=columns, frameon=False, fontsize=FONT_PT, labelcolor=INK,
        handlelength=2.4, columnspacing=1.4, borderpad=0, **entries,
    )  # fmt: skip


# Live curves


class Curve:
    """At most about `capacity` points that stand for a curve of any length.

    While it is short every point is kept. Then runs of neighbours are replaced by their lowest
    and highest point, in order, twice as many each time the room is used up: the outline on the
    screen stays the same, and a point costs the same however many came before. The first and the
    last point are always kept; a gap (nan) only where a whole run is one.
    """

    def __init__(self, *, capacity: int = 1000):
        self._capacity = capacity
        self._kept: list[tuple[float, float]] = []
        self._run: list[tuple[float, float]] = []
        self._run_length = 1
        self._in_run = 0
        self.first = self.last = None
        self.x_range = self.y_range = (math.inf, -math.inf)

    def add(self, x: float, y: float) -> None:
        y = y if math.isfinite(y) else math.nan
        self.last = (x, y)
        self.first = self.first or self.last
        self.x_range = _widened(self.x_range, x)
        self.y_range = _widened(self.y_range, y)
        self._run = _extremes([*self._run, self.last])
        self._in_run += 1
        if self._in_run == self._run_length:
            self._kept += self._run
            self._run, self._in_run = [], 0
        if len(self._kept) >= self._capacity:
            self._thin_out()

    def _thin_out(self) -> None:
        fours = (self._kept[i : i + 4] for i in range(0, len(self._kept), 4))
        self._kept = [point for four in fours for point in _extremes(four)]
        # Two points stand for a run, so runs of one (every point kept) are followed by runs of 4.
        self._run_length = max(4, 2 * self._run_length)

    def points(self) -> list[tuple[float, float]]:
        """The points to draw, from the first to the last."""
        points = [*self._kept, *self._run]
        if points and points[0] != self.first:
            points.insert(0, self.first)
        if points and points[-1] != self.last:
            points.append(self.last)
        return points


def _extremes(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest and the highest of the points, in their order."""
    finite = [point for point in points if not math.isnan(point[1])] or points[:1]
    low, high = (pick(finite, key=lambda point: point[1]) for pick in (min, max))
    return [point for point in finite if point is low or point is high]


def _widened(limits: tuple[float, float], value: float) -> tuple[float, float]:
    if math.isnan(value):
        return limits
    return min(limits[0], value), max(limits[1], value)


def _grown(view: tuple[float, float] | None, low: float, high: float) -> tuple[float, float]:
    """Limits that hold low and high: the view's own, or where it was left some to spare.

    The room to spare grows with the data, so n points outgrow their view only O(log n) times.
    """
    width = high - low
    if view is None:
        margin = 0.05 * width or 0.05 * abs(high) or 0.5
        return low - margin, high + margin
    return (
        view[0] if view[0] <= low else low - width / 2,
        view[1] if view[1] >= high else high + width / 2,
    )


class LivePlot:
    """Curves that grow while a cell runs, and stay behind as one static picture when it ends.

        with LivePlot(curves=("loss", "accuracy"), xlabel="epoch", note="simulated clock") as plot:
            plot.add(0.5, {"loss": 2.3})
            plot.status("epoch 1 · 2.8 s an epoch")

    `note` says where data and times come from and is always on the picture. `title` and the
    status stand over the axes. Limits that are given are kept; those left out follow the data.
    At most `max_fps` pictures a second are drawn, in place, at a cost that does not depend on
    the number of points; `clock` (seconds) measures that, and `draw()` draws at once.
    Outside a notebook the same calls print progress: a line a picture, on a terminal a bar.
    """

    def __init__(
        self,
        *,
        curves: Sequence[str],
        xlabel: str = "",
        ylabel: str = "",
        xlim: tuple[float, float] | None = None,
        ylim: tuple[float, float] | None = None,
        title: str = "",
        note: str = "",
        max_fps: float = 4,
        size_px: tuple[int, int] = SIZE_PX,
        clock: Callable[[], float] = time.monotonic,
    ):
        if isinstance(curves, str) or not curves or len(set(curves)) < len(curves):
            raise ValueError(ERROR_CURVES.format(curves=curves))
        if not max_fps > 0:
            raise ValueError(ERROR_FPS.format(fps=max_fps))
        self.curves = {name: Curve() for name in curves}
        self.xlabel, self.ylabel, self.note, self.size_px = xlabel, ylabel, note, size_px
        self.xlim, self.ylim = _checked_limits("xlim", xlim), _checked_limits("ylim", ylim)
        self._title, self.state = title, ""
        self._pause_s, self._clock, self._due_s = 1 / max_fps, clock, -math.inf
        self._screen = None

    def __enter__(self) -> "LivePlot":
        self._screen = _LiveFigure(self) if _in_notebook() else _TextProgress(self)
        return self

    def __exit__(self, *exception) -> None:
        screen, self._screen = self._screen, None
        screen.finish(self)

    def add(self, x: float, values: Mapping[str, float]) -> None:
        """Append the point (x, y) to each named curve; a y that is not finite leaves a gap."""
        x, given = float(x), x
        if not math.isfinite(x):
            raise ValueError(ERROR_FINITE.format(x=given))
        for name in values:
            if name not in self.curves:
                raise ValueError(ERROR_CURVE.format(name=name, known=", ".join(self.curves)))
        for name, y in values.items():
            self.curves[name].add(x, float(y))
        self._draw_if_due()

    def status(self, text: str) -> None:
        """Show `text` at the right over the axes, in place of the last one."""
        self.state = text
        self._draw_if_due()

    @property
    def title(self) -> str:
        return self._title

    @title.setter
    def title(self, text: str) -> None:
        self._title = text
        self._draw_if_due()

    def draw(self) -> None:
        """Draw now, whatever max_fps says."""
        self._open_screen().draw(self)
        self._due_s = self._clock() + self._pause_s

    def _draw_if_due(self) -> None:
        self._open_screen()
        if self._clock() >= self._due_s:
            self.draw()

    def _open_screen(self):
        if self._screen is None:
            raise RuntimeError(ERROR_CLOSED)
        return self._screen

    def last_values(self) -> str:
        """Where the curves are now, in words."""
        drawn = {name: curve.last for name, curve in self.curves.items() if curve.last}
        if not drawn:
            return TEXT_NO_POINTS
        values = (f"{name} {y:.3g}" for name, (_, y) in drawn.items())
        return _joined(f"{self.xlabel or 'x'} {self.last_x():g}", *values)

    def last_x(self) -> float:
        """The x of the last point of the curve that has come farthest; -inf before the first."""
        return max(curve.x_range[1] for curve in self.curves.values())


def _checked_limits(axis: str, limits):
    if limits is None:
        return None
    low, high = limits
    if not (math.isfinite(low) and math.isfinite(high) and low != high):
        raise ValueError(ERROR_LIMITS.format(axis=axis, limits=limits))
    return low, high


class _LiveFigure:
    """A live plot's picture. An update draws the curves over a saved background of all the rest."""

    def __init__(self, plot: LivePlot):
        summary = TEXT_LIVE.format(curves=", ".join(plot.curves), xlabel=plot.xlabel or "x")
        self.picture = Picture(summary=summary, note=plot.note, size_px=plot.size_px)
        self.axes = _dress(self.picture.add_subplot())
        self.axes.set(xlabel=plot.xlabel, ylabel=plot.ylabel)
        self.axes.grid(color=PALE)
        self.lines = [self._line(name, i) for i, name in enumerate(plot.curves)]
        _legend_above(self.picture, columns=3, handles=self.lines)
        self.title, self.status = (
            self.axes.set_title(" ", loc=side, size=FONT_PT, color=INK, animated=True)
            for side in ("left", "right")
        )
        self.moving = (*self.lines, self.title, self.status)
        self.axes.set(xlim=plot.xlim or (0, 1), ylim=plot.ylim or (0, 1))
        self._view = {}
        self._background = None
        self._place = _Place()
        self._place.open(self.picture, self._drawn(plot))

    def _line(self, name: str, i: int):
        color, style, marker = CURVE_STYLES[i % len(CURVE_STYLES)]
        [line] = self.axes.plot(
            [], [], color=color, ls=style, marker=marker, lw=2.2, ms=7, label=name, animated=True
        )
        return line

    def _set_data(self, plot: LivePlot) -> None:
        for line, curve in zip(self.lines, plot.curves.values(), strict=True):
            points = np.array(curve.points()).reshape(-1, 2)
            line.set_data(points.T)
            line.set_markevery(2 ** max(0, math.ceil(math.log2(len(points) / 8 or 1))))
        self.title.set_text(plot.title or " ")
        self.status.set_text(plot.state or " ")
        words = (plot.title, plot.state, plot.last_values())
        self.picture.alt = _joined(self.picture.summary, *words)

    def _fit(self, plot: LivePlot, *, tight: bool = False) -> None:
        """Move the limits that follow the data, which costs a drawing of the background."""
        for axis, given in (("x", plot.xlim), ("y", plot.ylim)):
            lows, highs = zip(
                *(getattr(curve, f"{axis}_range") for curve in plot.curves.values()), strict=True
            )
            low, high = min(lows), max(highs)
            if given or low > high:
                continue
            view = _grown(None if tight else self._view.get(axis), low, high)
            if view != self._view.get(axis):
                self._view[axis] = view
                self.axes.set(**{f"{axis}lim": view})
                self._background = None

    def draw(self, plot: LivePlot) -> None:
        self._place.update(self.picture, self._drawn(plot))

    def _drawn(self, plot: LivePlot) -> bytes:
        with _drawing:
            self._set_data(plot)
            self._fit(plot)
            canvas = self.picture.canvas
            if self._background is None:
                canvas.draw()
                self._background = canvas.copy_from_bbox(self.picture.bbox)
            canvas.restore_region(self._background)
            for artist in self.moving:
                self.axes.draw_artist(artist)
            # Shades off by up to a tenth, but five times as fast as the method of what stays.
            return _encoded(canvas.buffer_rgba(), method=Image.Quantize.FASTOCTREE)

    def finish(self, plot: LivePlot) -> None:
        """Leave the last state behind, complete and sharp."""
        with _drawing:
            self._set_data(plot)
            self._fit(plot, tight=True)
            for artist in self.moving:
                artist.set_animated(False)
            png = self.picture.png()
        self._place.update(self.picture, png)


class _TextProgress:
    """A live plot where there is no notebook: a bar on a terminal, elsewhere a line a picture."""

    def __init__(self, plot: LivePlot):
        self._shown = ""
        self._bar = None
        header = _joined(plot.title, plot.note)
        if header:
            print(header, flush=True)
        if sys.stdout.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=plot.xlim and plot.xlim[1], bar_format="{desc} {bar:20}", mininterval=0,
                file=sys.stdout,
            )  # fmt: skip

    def draw(self, plot: LivePlot) -> None:
        text = _joined(plot.last_values(), plot.state)
        if text == self._shown:
            return
        self._shown = text
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.n = max(plot.last_x(), 0)
            self._bar.set_description_str(text)

    def finish(self, plot: LivePlot) -> None:
        self.draw(plot)
        if self._bar is not None:
            self._bar.close()


# Gantt chart


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
        raise ValueError(ERROR_NO_SPANS)
    start_s = max(start_s, min(span.start_s for span in spans))
    end_s = min(end_s, max(span.end_s for span in spans))
    unit, per_s = _time_unit(end_s - start_s)
    rows = _rows(spans)
    bars = _bars(spans, rows, start_s=start_s, end_s=end_s, per_s=per_s)
    note = str(getattr(timeline, "clock", "")) if note is None else note
    time_label = TEXT_TIME.format(unit=unit)
    if ax is not None:
        time_label = _joined(time_label, note)  # other people's figures have no place for notes
    else:
        ax = _gantt_axes(rows, note=note, width_px=width_px)
        length = f"{(end_s - start_s) * per_s:.3g} {unit}"
        ax.figure.alt = TEXT_GANTT_ALT.format(
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
    summary = TEXT_GANTT.format(rows=", ".join(map(_row_name, rows)))
    picture = Picture(summary=summary, note=note, size_px=(width_px, 130 + 44 * len(rows)))
    return _dress(picture.add_subplot())


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
        stream = TEXT_STREAM.format(number=stream)
    return _joined(str(device), str(stream or ""))


def _kind_style(kind: str) -> tuple[str, str]:
    """Colour and hatch of a kind; one that is new to this module has the same in every chart."""
    if kind in KIND_STYLES:
        return KIND_STYLES[kind]
    return OTHER_KIND_STYLES[sum(kind.encode()) % len(OTHER_KIND_STYLES)]


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
        style["label"] = TEXT_KINDS.get(kind, kind)
        corners = [_corners(left, right, row) for left, right, row, _ in boxes]
        ax.add_collection(PolyCollection(corners, **style), autolim=False)
        keys.append(Patch(**style))
    _legend_above(ax.figure, columns=len(keys), handles=keys)


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


# Images


def images(
    X, labels, *, names: Sequence[str] = (), note: str = "", columns: int = 8, image_px: int = 90
) -> Picture:
    """A grid of a few grey images under their labels.

    X: [N, 1, H, W] or [N, H, W], values 0..1, an array or a tensor on any device. labels: N whole
    numbers, shown as `names[label]` if names are given. `note` says where the images come from.
    """
    X, labels = _array(X), _array(labels).reshape(-1)
    X = X[:, 0] if X.ndim == 4 and X.shape[1] == 1 else X
    if X.ndim != 3 or len(X) == 0:
        raise ValueError(ERROR_IMAGES.format(shape=list(X.shape)))
    if len(labels) != len(X):
        raise ValueError(ERROR_LABELS.format(images=len(X), labels=len(labels)))
    shown = [_label(int(label), names) for label in labels]
    columns = min(columns, len(X))
    rows = -(-len(X) // columns)
    picture = Picture(
        summary=TEXT_IMAGES.format(count=len(X)), alt=", ".join(filter(None, (*shown, note))),
        note=note, size_px=(columns * image_px, rows * (image_px + 26) + 30 * bool(note)),
    )  # fmt: skip
    axes = picture.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.axis("off")
    for ax, image, label in zip(axes, X, shown, strict=False):
        ax.imshow(image, cmap="gray", vmin=0, vmax=1)
        ax.set_title(label, size=SMALL_PT, color=INK)
    return picture


def _array(values) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _label(label: int, names: Sequence[str]) -> str:
    if not names:
        return str(label)
    if not 0 <= label < len(names):
        raise ValueError(ERROR_NAMES.format(label=label, count=len(names)))
    return names[label]


# Figures with sliders


class SliderFigure:
    """A picture drawn by `draw(ax, **values)` over controls that draw it again when moved.

    The picture is an output of its own, updated in place, and the controls are a second one, so
    the picture stays when the kernel is gone; in place of the controls a line then tells how to
    get them. Nothing of the widgets' state needs to be stored.
    """

    def __init__(self, draw, controls: Mapping, *, note: str, summary: str, size_px):
        self.controls = {name: _control(draw, name, spec) for name, spec in controls.items()}
        self._draw, self._note, self._summary, self._size_px = draw, note, summary, size_px
        self._place = _Place()
        self._box = None
        self.picture = self._drawn(self.values)
        self.png = self.picture.png()
        self._shown = self._first = self.values
        for control in self.controls.values():
            control.observe(lambda _: self.refresh(), names="value")

    @property
    def values(self) -> dict:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    def refresh(self) -> None:
        """Draw again if the controls have moved since, and show that wherever this is shown."""
        with _drawing:
            values = self.values
            if values == self._shown:
                return  # a call that waited here behind another may find its work done
            try:
                self.picture = self._drawn(values)
                self.png = self.picture.png()
            except Exception as error:  # a callback's errors are not shown anywhere else
                self.picture = self._failed(error)
                self.png = self.picture.png()
            self._shown = values
            if self._box is not None:
                self._place.update(self.picture, self.png)

    def _blank(self) -> Picture:
        return Picture(summary=self._summary, note=self._note, size_px=self._size_px)

    def _drawn(self, values: dict) -> Picture:
        picture = self._blank()
        picture.alt = _joined(picture.summary, _spoken(values))
        self._draw(_dress(picture.add_subplot()), **values)
        return picture

    def _failed(self, error: Exception) -> Picture:
        picture = self._blank()
        text = f"{type(error).__name__}: {error}"
        picture.text(0.5, 0.5, text, ha="center", color=VERMILION, size=FONT_PT, wrap=True)
        return picture

    def _ipython_display_(self):
        import ipywidgets
        from IPython.display import display

        if self._box is None:
            self._box = ipywidgets.VBox(list(self.controls.values()))
        view = self._box._repr_mimebundle_()[WIDGET_VIEW]
        fallback = TEXT_SLIDERS.format(values=_spoken(self._first))
        display({WIDGET_VIEW: view, "text/plain": fallback}, raw=True)
        self._place.open(self.picture, self.png)


def _spoken(values: dict) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _control(draw, name: str, spec):
    """The ipywidgets control of one parameter, starting at the parameter's default."""
    import inspect

    import ipywidgets

    parameter = inspect.signature(draw).parameters.get(name)
    default = inspect.Parameter.empty if parameter is None else parameter.default
    control = ipywidgets.interactive.widget_from_abbrev(spec, default)
    if control is None:
        raise ValueError(ERROR_CONTROL.format(name=name, spec=spec))
    control.description = control.description or name.replace("_", " ")
    control.style.description_width = "initial"
    return control


def slider_figure(
    draw: Callable, *, note: str = "", summary: str = "", size_px=SIZE_PX, **controls
) -> SliderFigure:
    """An interactive figure: `draw(ax, **values)` with a control for each of its parameters.

        slider_figure(draw, batch=(16, 1024, 16), link=["PCIe", "NVLink"], note="model")

    A control is an ipywidgets widget or what `interact` takes for one: (low, high, step) is a
    slider, a list a choice, a bool a check box. Each starts at the default that `draw` gives its
    parameter. `draw` runs again at each change, in another thread: it must not touch the cell's
    clock. `summary` is the picture's text (default: the first line of draw's docstring).
    """
    first_line = (draw.__doc__ or TEXT_SLIDER_FIGURE).strip().splitlines()[0]
    return SliderFigure(draw, controls, note=note, summary=summary or first_line, size_px=size_px)
