"""A Gantt chart that grows while the run that it shows is recorded."""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Unpack

from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from ...timeline import Span, Timeline
from ...timeline.printing import say
from ...timeline.spans import Row, rows_of
from .. import texts
from ..gantt_chart import (
    MANY_BARS,
    GanttOptions,
    TimeScale,
    bar_style,
    corners,
    draw_legend,
    edges,
    gantt,
    kinds_in_order,
    merged,
    place_rows,
)
from ..picture import Picture, PictureSlot, drawing, encoded, in_notebook
from ..style import FONT_PT, INK, PALE, dress
from . import interrupts
from .pace import Pace

SIZE_PX = (760, 400)
TOLD_APART = 1000  # parts of the width; what lies closer together in a row is one bar

Box = tuple[float, float, Row]  # start_s, end_s, row


class LiveGantt:
    """Draws a recording while it grows, in place, and leaves the whole chart behind.

        with LiveGantt(par.record()) as timeline:
            train()

    Takes what records, and gives its timeline. At most `max_fps` pictures a second are drawn,
    at a cost that does not depend on how long the run is; `clock` (seconds) measures that.
    `chart` are options of `gantt` for the picture that stays. A recording that keeps no spans
    leaves the last picture. Runs of real devices are known when they end, so they have the last
    picture only. Outside a notebook one line at the end says what was recorded.
    """

    def __init__(
        self,
        recording: AbstractContextManager[Timeline],
        *,
        title: str = "",
        max_fps: float = 4,
        size_px: tuple[int, int] = SIZE_PX,
        clock: Callable[[], float] = time.monotonic,
        **chart: Unpack[GanttOptions],
    ) -> None:
        self._recording, self._title, self._size_px, self._chart = recording, title, size_px, chart
        self._pace = Pace(max_fps, clock)
        self._screen: _Screen | None = None

    def __enter__(self) -> Timeline:
        self._timeline = self._recording.__enter__()
        if in_notebook():
            self._screen = _Screen(self._timeline.clock, self._title, self._size_px)
            self._timeline.listeners.append(self._noted)
        return self._timeline

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            heeded = self._recording.__exit__(kind, error, traceback)
        finally:
            stopped = interrupts.put_off(self._finish)
            interrupts.short(error, traceback)
        if stopped and error is None:
            raise KeyboardInterrupt(texts.STOPPED_LATE)
        return heeded

    def _noted(self, span: Span) -> None:
        assert self._screen is not None  # or nobody would listen
        self._screen.add(span)
        if self._pace.due:
            self._screen.draw()
            self._pace.drawn()

    def _finish(self) -> None:
        if self._noted in self._timeline.listeners:
            self._timeline.listeners.remove(self._noted)
        if not self._timeline.spans:
            if self._screen is not None:
                self._screen.draw()
            return
        width_px, height_px = self._size_px
        options: GanttOptions = {"height_px": height_px, **self._chart}
        with drawing:
            picture = gantt(self._timeline, title=self._title, width_px=width_px, **options)
            assert isinstance(picture, Picture)  # as it was drawn on no axes of somebody's
            if self._screen is None:
                say(picture.alt, flush=True)
            else:
                self._screen.finish(picture)


class _Bars:
    """Spans as bars of bounded number: those too close to be told apart are one."""

    def __init__(self) -> None:
        self.start_s, self.end_s = math.inf, -math.inf
        self.boxes: dict[str, list[Box]] = defaultdict(list)  # of each kind
        self.examples: dict[tuple[str, Row], Span] = {}  # of each kind and row
        self._latest: dict[tuple[str, Row], int] = {}  # of each kind and row: the last box
        self._grain_s = 0.0

    def add(self, span: Span) -> None:
        self.start_s, self.end_s = min(self.start_s, span.start_s), max(self.end_s, span.end_s)
        row = (span.device, span.stream)
        key = (span.kind, row)
        boxes = self.boxes[span.kind]
        if key in self._latest:
            start_s, end_s, _ = boxes[self._latest[key]]
            if start_s <= span.start_s <= end_s + self._grain_s:
                boxes[self._latest[key]] = (start_s, max(end_s, span.end_s), row)
                return
        self.examples.setdefault(key, span)
        self._latest[key] = len(boxes)
        boxes.append((span.start_s, span.end_s, row))
        crowded = len(boxes) > 4 * TOLD_APART * len(self.examples)
        if crowded or self.end_s - self.start_s > 2 * TOLD_APART * self._grain_s:
            self._coarsen()

    def _coarsen(self) -> None:
        self._grain_s = (self.end_s - self.start_s) / TOLD_APART
        self._latest.clear()
        for kind, boxes in self.boxes.items():
            self.boxes[kind] = [box[:3] for box in merged(boxes, self._grain_s)]
            self._latest.update({(kind, box[2]): i for i, box in enumerate(self.boxes[kind])})


class _Screen:
    """The picture in the notebook; its axes and collections are used again for each update."""

    def __init__(self, note: str, title: str, size_px: tuple[int, int]) -> None:
        self.picture = Picture(summary=texts.LIVE_GANTT, note=note, size_px=size_px)
        self.axes = dress(self.picture.add_subplot())
        self.axes.set_title(title, loc="left", size=FONT_PT, color=INK)
        self.axes.grid(axis="x", color=PALE)
        self._bars = _Bars()
        self._collections: dict[str, PolyCollection] = {}
        self._many: dict[str, bool] = {}
        self._rows: list[Row] = []
        self._slot: PictureSlot | None = None

    def add(self, span: Span) -> None:
        self._bars.add(span)

    def draw(self) -> None:
        """Show what was added so far; the first time, in an output of its own."""
        if not self._bars.boxes:
            return
        with drawing:
            self._set_data()
            self.picture.canvas.draw()
            png = encoded(self.picture.canvas.buffer_rgba())
        self._show(self.picture, png)

    def finish(self, picture: Picture) -> None:
        """Leave `picture` in the place of the others."""
        picture.summary = self.picture.summary  # the same from the first to the last
        picture.view = None  # the page would jump from the picture that has grown to it
        self._show(picture, picture.png())

    def _show(self, picture: Picture, png: bytes) -> None:
        if self._slot is None:
            self._slot = PictureSlot()
            self._slot.open(picture, png)
        else:
            self._slot.update(picture, png)

    def _set_data(self) -> None:
        bars = self._bars
        scale = TimeScale.between(bars.start_s, bars.end_s)
        rows = rows_of(bars.examples.values())
        if rows != self._rows:
            self._rows = rows
            place_rows(self.axes, rows)
        self._set_looks({kind: len(boxes) > MANY_BARS for kind, boxes in bars.boxes.items()})
        self.axes.set_xlim(0, scale.length or 1)
        for kind, boxes in bars.boxes.items():
            drawn = [
                (scale.x(start_s), scale.x(end_s), rows.index(row)) for start_s, end_s, row in boxes
            ]
            self._collections[kind].set_verts(corners(drawn))
            style = bar_style(kind, many=self._many[kind])
            self._collections[kind].set_edgecolor(edges(self.axes, drawn, style))
        self.axes.set_xlabel(texts.TIME.format(unit=scale.unit))

    def _set_looks(self, many: dict[str, bool]) -> None:
        """New collections and a new legend where a kind is new, or has become many."""
        if many == self._many:
            return
        self._many = many
        for artist in (*self._collections.values(), *self.picture.legends):
            artist.remove()
        styles = {kind: bar_style(kind, many=many[kind]) for kind in kinds_in_order(set(many))}
        self._collections = {kind: PolyCollection([], **style) for kind, style in styles.items()}
        for collection in self._collections.values():
            self.axes.add_collection(collection, autolim=False)
        draw_legend(self.picture, [Patch(**style) for style in styles.values()])
