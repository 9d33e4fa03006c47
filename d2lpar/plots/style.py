"""Palette, type sizes, and axes dressed in them.

Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color), always together with a second mark
(line style, marker, hatch), on white, so that a dark theme reads too.
"""

from collections.abc import Sequence
from typing import cast

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.scale import LogTransform
from matplotlib.ticker import LogFormatterSciNotation

from ..timeline.traces.page import colors as palette

BLUE, ORANGE, GREEN, VERMILION = palette.BLUE, palette.ORANGE, palette.GREEN, palette.VERMILION
PURPLE, SKY, YELLOW, BLACK = palette.PURPLE, palette.SKY, palette.YELLOW, palette.BLACK
INK, GREY, PALE = "#222222", palette.GREY, palette.PALE
CURVE_STYLES = (  # colour, line, marker
    (BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"),
    (ORANGE, "-", "v"), (SKY, "--", "P"), (BLACK, "-.", "X"), (YELLOW, ":", "*"),
)  # fmt: skip
HATCHES = {  # of a kind of span
    "copy": "//", "host": "\\\\", "collective": "xx", "wait": "..", "again": "xx",
}  # fmt: skip
KIND_STYLES = {kind: (color, HATCHES.get(kind, "")) for kind, color in palette.KINDS.items()}
PASS_STYLES = {kind: (color, HATCHES.get(kind, "")) for kind, color in palette.PASSES.items()}
OTHER_HATCHES = dict(zip(palette.OTHERS, ("--", "++"), strict=True))

FONT_PT, SMALL_PT = 13, 10.5


def dress(ax: Axes) -> Axes:
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


class PlainDecades(LogFormatterSciNotation):
    """Ticks of a log axis as one reads numbers, 0.1 or 10,000; as powers only far from 1."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """What stands at the tick `x`, the axis's `pos`-th."""
        text = super().__call__(x, pos)  # none at most ticks between the decades
        return f"{x:,g}" if text and 1e-4 <= x < 1e6 else text


def write_plain_decades(ax: Axes) -> None:
    """Log axes get `PlainDecades`, unless somebody chose how their ticks are written."""
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log" and axis.isDefault_majfmt:
            base = cast(LogTransform, axis.get_transform()).base
            axis.set_major_formatter(PlainDecades(base))
            axis.set_minor_formatter(PlainDecades(base, minor_thresholds=(1, 0.4)))


def figure_of(ax: Axes) -> Figure:
    """The figure that axes are on: the whole one if they are on a part of it."""
    return ax.figure if isinstance(ax.figure, Figure) else ax.figure.figure


def legend_above(figure: Figure, *, columns: int, entries: Sequence[Artist]) -> None:
    """A legend above all axes, in rows of so many columns."""
    figure.legend(
        loc="outside upper left", ncols=columns, frameon=False, fontsize=FONT_PT, labelcolor=INK,
        handlelength=2.4, columnspacing=1.4, borderpad=0, handles=entries,
    )  # fmt: skip
