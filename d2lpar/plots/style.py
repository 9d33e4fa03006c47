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

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"
INK, GREY, PALE = "#222222", "#B0B0B0", "#D9D9D9"
CURVE_STYLES = (  # colour, line, marker
    (BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"),
    (ORANGE, "-", "v"), (SKY, "--", "P"), (BLACK, "-.", "X"), (YELLOW, ":", "*"),
)  # fmt: skip
KIND_STYLES = {  # of a span: colour, hatch
    "compute": (BLUE, ""),
    "copy": (ORANGE, "//"),
    "dispatch": (GREY, ""),
    "host": (PURPLE, "\\\\"),
    "collective": (GREEN, "xx"),
    "wait": (SKY, ".."),
}
PASS_STYLES = {  # of a micro-batch through a stage: colours from dark to light, so few hatches
    "forward": (BLUE, ""),
    "backward": (ORANGE, ""),
    "inputs": (SKY, ""),
    "weights": (YELLOW, ""),
    "again": (PALE, "xx"),
    "all_gather": (GREEN, ""),
    "reduce_scatter": (SKY, ""),
    "update": (PURPLE, ""),
}
DARK_KINDS = (BLUE, GREEN)
OTHER_KIND_STYLES = ((VERMILION, "--"), (YELLOW, "++"))

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
