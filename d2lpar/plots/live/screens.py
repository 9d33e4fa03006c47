"""Where a live plot is drawn: as a picture in a notebook, elsewhere as text."""

import math
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox, TransformedBbox
from PIL import Image

from ...timeline.printing import printable, say
from .. import texts
from ..picture import Picture, PictureSlot, drawing, encoded, few_colors
from ..style import CURVE_STYLES, FONT_PT, INK, PALE, SMALL_PT, dress, legend_above
from .chart import LINEAR, LOG, Chart

ROOM_FOR_MARKERS = Bbox.from_extents(-0.025, -0.04, 1.025, 1.04)  # in sizes of the axes
FIRST_VIEW = {LINEAR: (0, 1), LOG: (0.1, 1)}  # where there is no point yet


class Panel:
    """One chart of a live picture, on axes of its own."""

    def __init__(self, axes: Axes, chart: Chart) -> None:
        self.axes, self.chart = axes, chart
        axes.set(xlabel=chart.xlabel, ylabel=chart.ylabel)
        axes.grid(color=PALE)
        for name, x in chart.places.items():
            axes.axvline(x, color=INK, ls=":", lw=1.2)
            axes.text(
                x, 0.02, f" {name}", transform=axes.get_xaxis_transform(), size=SMALL_PT,
                color=INK, clip_on=True, in_layout=False,
            )  # fmt: skip
        self.lines = [self._line(name, i) for i, name in enumerate(chart.curves)]
        self.title, self.status = (
            axes.set_title(" ", loc=side, size=FONT_PT, color=INK, animated=True)
            for side in ("left", "right")
        )
        self.moving = (*self.lines, self.title, self.status)
        axes.set(xscale=chart.xscale, yscale=chart.yscale)
        dress(axes)  # a log scale brings ticks of its own
        axes.set(
            xlim=chart.xlim or FIRST_VIEW[chart.xscale], ylim=chart.ylim or FIRST_VIEW[chart.yscale]
        )
        self._view: dict[str, tuple[float, float]] = {}  # the limits of "x" and "y"

    def _line(self, name: str, i: int) -> Line2D:
        color, style, marker = CURVE_STYLES[i % len(CURVE_STYLES)]
        if name in self.chart.marks:
            style = ""
        [line] = self.axes.plot(
            [], [], color=color, ls=style, marker=marker, lw=2.2, ms=7, label=name, animated=True
        )
        # The axes' own edges would cut the marker of a point that lies on them in half.
        line.set_clip_path(None)
        line.set_clip_box(TransformedBbox(ROOM_FOR_MARKERS, self.axes.transAxes))
        return line

    def set_data(self) -> None:
        """Give the lines the chart's points, and the texts its words."""
        for line, curve in zip(self.lines, self.chart.curves.values(), strict=True):
            points = np.array(curve.points()).reshape(-1, 2)
            line.set_data(points.T)
            if line.get_label() not in self.chart.marks:
                line.set_markevery(2 ** max(0, math.ceil(math.log2(len(points) / 8 or 1))))
        self.title.set_text(self.chart.title or " ")
        self.status.set_text(self.chart.status or " ")

    def draw_moving(self) -> None:
        """Draw the curves and the words over what the canvas holds."""
        for artist in self.moving:
            if not isinstance(artist, Text) or artist.get_text().strip():
                self.axes.draw_artist(artist)

    def fit(self, *, tight: bool) -> set[str]:
        """Move the limits that follow the data; the axes, "x" and "y", on which they moved."""
        moved, chart = set(), self.chart
        for axis, given, scale in (
            ("x", chart.xlim, chart.xscale),
            ("y", chart.ylim, chart.yscale),
        ):
            low, high = chart.reach(axis)
            if given or low > high:
                continue
            grown = _grown_in_decades if scale == LOG else _grown
            view = grown(None if tight else self._view.get(axis), low, high)
            if axis == "y" and chart.from_zero:
                view = (low, view[1])
            if view != self._view.get(axis):
                self._view[axis] = view
                self.axes.set(**{f"{axis}lim": view})
                moved.add(axis)
        return moved


class LiveFigure:
    """A live plot's picture: charts side by side, with the same curves, that share a legend.

    An update draws the curves over a saved background of all the rest. `slot` is an output to take
    over, whose picture this one replaces.
    """

    def __init__(self, charts: Sequence[Chart], slot: PictureSlot | None = None) -> None:
        first = charts[0]
        self.picture = Picture(
            summary=summary_of(charts), note=first.note, size_px=first.size_px
        )  # fmt: skip
        self.panels = [
            Panel(dress(self.picture.add_subplot(1, len(charts), i)), chart)
            for i, chart in enumerate(charts, 1)
        ]
        legend_above(self.picture, columns=3, entries=self.panels[0].lines)
        self._background: object = None  # pixels as the canvas keeps them; None: draw them anew
        self._colors: Image.Image | None = None
        self._keeps_places = False  # of the axes: their labels are as wide as before
        self.slot = slot or PictureSlot()
        (self.slot.update if slot else self.slot.open)(self.picture, self._drawn())

    def _set_data(self, *, tight: bool = False) -> None:
        for panel in self.panels:
            panel.set_data()
            moved = panel.fit(tight=tight)
            if moved:  # which costs a drawing of the background
                self._background = self._colors = None
            if "y" in moved:
                self._keeps_places = False
        self.picture.alt = alt_of(self.picture.summary, [panel.chart for panel in self.panels])

    def draw(self) -> None:
        """Show the curves as they are now."""
        self.slot.update(self.picture, self._drawn())

    def _drawn(self) -> bytes:
        with drawing:
            self._set_data()
            canvas = self.picture.canvas
            if self._background is None:
                self._draw_background()
            canvas.restore_region(self._background)
            for panel in self.panels:
                panel.draw_moving()
            pixels = canvas.buffer_rgba()
            if self._colors is None:  # the legend has those of all curves
                self._colors = few_colors(pixels)
            return encoded(pixels, self._colors)

    def _draw_background(self) -> None:
        layout, canvas = self.picture.get_layout_engine(), self.picture.canvas
        if self._keeps_places:  # to find them takes as long as all the drawing
            self.picture.set_layout_engine("none")
        canvas.draw()
        self.picture.set_layout_engine(layout)
        self._keeps_places = True
        self._background = canvas.copy_from_bbox(self.picture.bbox)

    def finish(self) -> None:
        """Leave the last state behind, complete and sharp."""
        with drawing:
            self._set_data(tight=True)
            for panel in self.panels:
                for artist in panel.moving:
                    artist.set_animated(False)
            png = self.picture.png()
        self.slot.update(self.picture, png)


def summary_of(charts: Sequence[Chart]) -> str:
    """What is drawn, in words that stay the same from run to run."""
    if len(charts) == 1:
        return charts[0].summary()
    panels = texts.AND.join(chart.ylabel for chart in charts)
    names = ", ".join(charts[0].curves)
    return texts.PANELS.format(panels=panels, names=names, xlabel=charts[0].xlabel)


def alt_of(summary: str, charts: Sequence[Chart]) -> str:
    """What is drawn, and where the curves are now."""
    if len(charts) == 1:
        chart = charts[0]
        return texts.joined(summary, chart.title, chart.status, chart.last_values())
    values = (f"{chart.ylabel}: {chart.last_values()}" for chart in charts)
    return texts.joined(summary, *values)


def _grown(
    view: tuple[float, float] | None, low: float, high: float, spare: float = 1
) -> tuple[float, float]:
    """Limits that hold low and high: the view's own, or where it was left some to spare.

    The room to spare, a part of what the data take, grows with them, so n points outgrow their view
    only O(log n) times.
    """
    width = high - low
    if view is None:
        margin = 0.05 * width or 0.05 * abs(high) or 0.5
        return low - margin, high + margin
    return (
        view[0] if view[0] <= low else low - spare * width,
        view[1] if view[1] >= high else high + spare * width,
    )


def _grown_in_decades(
    view: tuple[float, float] | None, low: float, high: float
) -> tuple[float, float]:
    """The same on a log scale, where data outgrow their view more rarely."""
    decades = view and (math.log10(view[0]), math.log10(view[1]))
    left, right = _grown(decades, math.log10(low), math.log10(high), spare=0.25)
    return 10**left, 10**right


class TextProgress:
    """A live plot where there is no notebook: a bar on a terminal, elsewhere a line a picture."""

    def __init__(self, charts: Sequence[Chart]) -> None:
        self._charts, self._shown = charts, ""
        self._bar = None
        chart = charts[0]
        header = texts.joined(chart.title, chart.note)
        if header:
            say(header, flush=True)
        if sys.stdout.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=chart.xlim and chart.xlim[1], bar_format="{desc} {bar:20}", mininterval=0,
                file=sys.stdout,
            )  # fmt: skip

    def draw(self) -> None:
        """Print how far the curves have come, if that has changed."""
        text = texts.joined(*(told for chart in self._charts for told in _told(chart)))
        if text == self._shown:
            return
        self._shown = text
        if self._bar is None:
            say(text, flush=True)
        else:
            self._bar.n = max(self._charts[0].last_x(), 0)
            self._bar.set_description_str(printable(text, sys.stdout))

    def finish(self) -> None:
        """Print the last state, and end the bar."""
        self.draw()
        if self._bar is not None:
            self._bar.close()


def _told(chart: Chart) -> tuple[str, str]:
    values = chart.last_values()
    return (f"{chart.ylabel}: {values}" if chart.ylabel else values), chart.status
