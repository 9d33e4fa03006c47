"""A curve of any length, held in a bounded number of points."""

import math

Point = tuple[float, float]


class Curve:
    """At most about `capacity` points that stand for a curve of any length.

    While it is short every point is kept. Then runs of neighbours are replaced by their lowest
    and highest point, in order, twice as many each time the room is used up: the outline on the
    screen stays the same, and a point costs the same however many came before. The first and the
    last point are always kept; a gap (nan) only where a whole run is one.
    """

    def __init__(self, *, capacity: int = 1000):
        self._capacity = capacity
        self._kept: list[Point] = []
        self._run: list[Point] = []
        self._run_length = 1
        self._in_run = 0
        self.first: Point | None = None
        self.last: Point | None = None
        self.x_range = self.y_range = (math.inf, -math.inf)

    def add(self, x: float, y: float) -> None:
        """Append a point; a y that is not finite leaves a gap."""
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

    def points(self) -> list[Point]:
        """The points to draw, from the first to the last."""
        if self.first is None or self.last is None:
            return []
        points = [*self._kept, *self._run]
        if points[0] != self.first:
            points.insert(0, self.first)
        if points[-1] != self.last:
            points.append(self.last)
        return points


def _extremes(points: list[Point]) -> list[Point]:
    finite = [point for point in points if not math.isnan(point[1])] or points[:1]
    low, high = (pick(finite, key=lambda point: point[1]) for pick in (min, max))
    return [point for point in finite if point is low or point is high]


def _widened(limits: tuple[float, float], value: float) -> tuple[float, float]:
    if math.isnan(value):
        return limits
    return min(limits[0], value), max(limits[1], value)
