"""Bars of several quantities side by side, one row for each of the things compared."""

from collections.abc import Mapping, Sequence

from .picture import Picture
from .style import BLUE, FONT_PT, GREEN, INK, ORANGE, SMALL_PT, dress

ROW_PX, FRAME_PX, WIDTH_PX = 40, 90, 880
FILLS = ((BLUE, ""), (ORANGE, "//"), (GREEN, "xx"))


def bar_panels(
    names: Sequence[str], panels: Mapping[str, Sequence[float]], *, note: str, summary: str
) -> Picture:
    """A row of bars for each name, a panel for each quantity, with its value at each bar's end.

    `panels` gives a value for each name by the panel's label, which names the unit.
    """
    told = (
        ", ".join([name, *(f"{values[i]:.3g} {label}" for label, values in panels.items())])
        for i, name in enumerate(names)
    )
    picture = Picture(
        summary=summary, alt=f"{summary}: {'; '.join(told)}", note=note,
        size_px=(WIDTH_PX, FRAME_PX + ROW_PX * len(names)),
    )  # fmt: skip
    all_axes = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for i, (label, values) in enumerate(panels.items()):
        ax, (color, hatch) = dress(all_axes[i]), FILLS[i % len(FILLS)]
        bars = ax.barh(names, values, color=color, hatch=hatch, edgecolor="white", height=0.6)
        ax.bar_label(bars, fmt="{:.3g}", padding=4, fontsize=SMALL_PT, color=INK)
        ax.set_xlabel(label, size=FONT_PT, color=INK)
        ax.margins(x=0.3)
        ax.set_xlim(left=0)
    all_axes[0].invert_yaxis()
    return picture
