"""Curves that grow while a cell runs."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from .. import texts
from ..picture import SIZE_PX, in_notebook
from .chart import LINEAR, LOG, Chart, Limits
from .curve import Curve
from .drawing import Drawing
from .pace import Pace
from .screens import LiveFigure, TextProgress


class LivePlot(Drawing):
    """Curves that grow while a cell runs, and stay behind as one static picture when it ends.

        with LivePlot(curves=("loss", "accuracy"), xlabel="epoch", note="simulated clock") as plot:
            plot.add(0.5, {"loss": 2.3})
            plot.status("epoch 1 · 2.8 s an epoch")

    `note` says where data and times come from and is always on the picture. `title` and the
    status stand over the axes. Limits that are given are kept; those left out follow the data.
    A scale is "linear" or "log", where points are above zero. Curves named in `marks` are points
    that no line joins, such as measurements under a roofline. `places` names some x, such as the
    size of a cache: a dotted line stands there.
    At most `max_fps` pictures a second are drawn, in place, at a cost that does not depend on
    the number of points; `clock` (seconds) measures that, and `draw()` draws at once.
    Outside a notebook the same calls print progress: a line a picture, on a terminal a bar.
    Raises ValueError for curves of one name, marks that are no curves, and limits, scales and
    `max_fps` that cannot be.
    """

    def __init__(
        self,
        *,
        curves: Sequence[str],
        xlabel: str = "",
        ylabel: str = "",
        xlim: Limits = None,
        ylim: Limits = None,
        xscale: str = LINEAR,
        yscale: str = LINEAR,
        marks: Collection[str] = (),
        places: Mapping[str, float] | None = None,
        title: str = "",
        note: str = "",
        max_fps: float = 4,
        size_px: tuple[int, int] = SIZE_PX,
        clock: Callable[[], float] = time.monotonic,
    ):
        if isinstance(curves, str) or not curves or len(set(curves)) < len(curves):
            raise ValueError(texts.ERROR_CURVES.format(curves=curves))
        for name in [marks] if isinstance(marks, str) else marks:
            if name not in curves:
                raise ValueError(texts.ERROR_CURVE.format(name=name, known=", ".join(curves)))
        self.chart = Chart(
            {name: Curve() for name in curves},
            xlabel=xlabel,
            ylabel=ylabel,
            xlim=_checked_limits("xlim", xlim, xscale),
            ylim=_checked_limits("ylim", ylim, yscale),
            xscale=xscale,
            yscale=yscale,
            marks=frozenset([marks] if isinstance(marks, str) else marks),
            places=places or {},
            title=title,
            note=note,
            size_px=size_px,
        )
        super().__init__(Pace(max_fps, clock), texts.ERROR_CLOSED)

    def __enter__(self) -> "LivePlot":
        self._screen = (LiveFigure if in_notebook() else TextProgress)([self.chart])
        return self

    def add(self, x: float, values: Mapping[str, float]) -> None:
        """Append the point (x, y) to each named curve; a y that is not finite leaves a gap.

        Raises ValueError for an x that is not finite, a name that no curve has, and what a
        logarithmic scale cannot show.
        """
        x, given = float(x), x
        if not math.isfinite(x):
            raise ValueError(texts.ERROR_FINITE.format(x=given))
        if self.chart.xscale == LOG and x <= 0:
            raise ValueError(texts.ERROR_LOG.format(axis="x", value=given))
        curves = self.chart.curves
        for name in values:
            if name not in curves:
                raise ValueError(texts.ERROR_CURVE.format(name=name, known=", ".join(curves)))
            if self.chart.yscale == LOG and values[name] <= 0:
                raise ValueError(texts.ERROR_LOG.format(axis="y", value=values[name]))
        for name, y in values.items():
            curves[name].add(x, float(y))
        self._draw_if_due()

    def status(self, text: str) -> None:
        """Show `text` at the right over the axes, in place of the last one."""
        self.chart.status = text
        self._draw_if_due()

    @property
    def title(self) -> str:
        """What stands at the left over the axes; setting it shows it."""
        return self.chart.title

    @title.setter
    def title(self, text: str) -> None:
        self.chart.title = text
        self._draw_if_due()


def _checked_limits(axis: str, limits: Limits, scale: str) -> Limits:
    if scale not in (LINEAR, LOG):
        raise ValueError(texts.ERROR_SCALE.format(scale=scale))
    if limits is None:
        return None
    low, high = limits
    if not (math.isfinite(low) and math.isfinite(high) and low != high):
        raise ValueError(texts.ERROR_LIMITS.format(axis=axis, limits=limits))
    if scale == LOG and min(low, high) <= 0:
        raise ValueError(texts.ERROR_LOG.format(axis=axis[0], value=min(low, high)))
    return low, high
