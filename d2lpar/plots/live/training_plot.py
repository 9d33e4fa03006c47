"""Accuracy and time of several training runs, in one figure that grows."""

import math
import time as system_time
from collections.abc import Callable
from dataclasses import replace

from .. import texts
from ..picture import PictureSlot, cell_number, in_notebook
from .chart import Chart, Limits
from .curve import Curve
from .drawing import Drawing
from .pace import Pace
from .screens import LiveFigure, TextProgress

SIZE_PX = (820, 340)


class TrainingPlot:
    """Accuracy (left, 0 to 1) and time (right) of training runs that are to be compared.

        plot = TrainingPlot(xlabel="step", time="ms per step", note="synthetic images")
        with plot.run("1 GPU", clock=par.clock_name(devices)) as run:
            run.add(50, accuracy=0.4, time=3.2)

    Each run, in whatever cell, shows all runs up to now; a cell is left with one static picture. A
    run of a name that was there takes its place. `time` says what is drawn on the right, with its
    unit; `clock` where it comes from, simulated or measured. `note` says where the data come from.
    At most `max_fps` pictures a second are drawn; `now` (seconds) measures that.
    """

    def __init__(
        self,
        *,
        xlabel: str,
        time: str,
        note: str = "",
        xlim: Limits = None,
        max_fps: float = 4,
        size_px: tuple[int, int] = SIZE_PX,
        now: Callable[[], float] = system_time.monotonic,
    ) -> None:
        blank = Chart({}, xlabel, "accuracy", xlim, (0, 1), title="", note=note, size_px=size_px)
        self._accuracy = blank
        self._time = replace(blank, curves={}, ylabel=time, ylim=None, from_zero=True)
        self._note, self._clocks = note, dict[str, str]()
        self._max_fps, self._now = max_fps, now
        self._cell = 0
        self._slot: PictureSlot | None = None
        Pace(max_fps, now)  # a wrong value is told here, not by the first run

    def run(self, name: str, *, clock: str = "") -> "Run":
        """A run to add points to, inside `with`; `clock` says where its times come from.

        Raises ValueError for a name that is empty, or no text.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(texts.ERROR_NO_RUN.format(name=name))
        for chart in (self._accuracy, self._time):
            chart.curves[name] = Curve()
        self._clocks[name] = clock
        curves = (self._accuracy.curves[name], self._time.curves[name])
        return Run(self, self._charts(), curves, Pace(self._max_fps, self._now))

    def open_screen(self, charts: list[Chart]) -> LiveFigure | TextProgress:
        """Where a run is drawn: in one cell, where the one before was."""
        if not in_notebook():
            return TextProgress(charts)
        screen = LiveFigure(charts, self._slot if cell_number() == self._cell else None)
        self._cell, self._slot = cell_number(), screen.slot
        return screen

    def _charts(self) -> list[Chart]:
        """What a picture shows: curves by their runs' names, with the clock where it differs."""
        told = {clock for clock in self._clocks.values() if clock}
        note = texts.joined(self._note, *told) if len(told) == 1 else self._note
        names = {
            name: f"{name} ({clock})" if clock and len(told) > 1 else name
            for name, clock in self._clocks.items()
        }
        return [
            replace(
                chart,
                curves={names[name]: curve for name, curve in chart.curves.items()},
                note=note,
            )
            for chart in (self._accuracy, self._time)
        ]


class Run(Drawing):
    """One run of a `TrainingPlot`: a context manager with `add`."""

    def __init__(
        self, plot: TrainingPlot, charts: list[Chart], curves: tuple[Curve, Curve], pace: Pace
    ) -> None:
        super().__init__(pace, texts.ERROR_RUN_CLOSED)
        self._plot, self._charts, self._curves = plot, charts, curves

    def __enter__(self) -> "Run":
        self._screen = self._plot.open_screen(self._charts)
        return self

    def add(self, x: float, *, accuracy: float = math.nan, time: float = math.nan) -> None:
        """Append a point at x: an accuracy from 0 to 1, a time in the plot's unit, or both.

        Raises ValueError for an x that is not finite.
        """
        if not math.isfinite(x):
            raise ValueError(texts.ERROR_FINITE.format(x=x))
        self._open_screen()
        for curve, y in zip(self._curves, (accuracy, time), strict=True):
            if not math.isnan(y):
                curve.add(float(x), float(y))
        self._draw_if_due()
