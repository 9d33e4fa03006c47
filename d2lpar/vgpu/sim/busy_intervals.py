"""What one engine or port is doing when, and the first moment at which it is free for more."""

from __future__ import annotations

from bisect import bisect_right

KEPT_INTERVALS = 4096


class Resource:
    """Something that does one thing at a time, and the gaps that are left in its calendar."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def earliest(self, ready_s: float, duration_s: float) -> float:
        """The first moment from `ready_s` on at which `duration_s` seconds are free."""
        if not self._ends or ready_s >= self._ends[-1]:
            return ready_s
        start_s = ready_s
        for i in range(bisect_right(self._ends, ready_s), len(self._ends)):
            if start_s + duration_s <= self._starts[i]:
                return start_s
            start_s = max(start_s, self._ends[i])
        return start_s

    def occupy(self, start_s: float, end_s: float) -> None:
        """Note that the time from `start_s` to `end_s`, which must be free, is taken."""
        if end_s <= start_s:
            return
        if not self._ends or start_s > self._ends[-1]:
            self._starts.append(start_s)
            self._ends.append(end_s)
            if len(self._starts) > KEPT_INTERVALS:
                self._forget_older_half()
        elif start_s == self._ends[-1]:
            self._ends[-1] = end_s
        else:
            at = bisect_right(self._starts, start_s)
            self._starts.insert(at, start_s)
            self._ends.insert(at, end_s)

    def busy_s(self, start_s: float, end_s: float) -> float:
        """Seconds between these two that are taken."""
        busy_s = 0.0
        for i in range(bisect_right(self._ends, start_s), len(self._ends)):
            if self._starts[i] >= end_s:
                break
            busy_s += min(self._ends[i], end_s) - max(self._starts[i], start_s)
        return busy_s

    def _forget_older_half(self) -> None:
        """Close the older half of the gaps, so that memory and time stay bounded in long runs."""
        half = len(self._starts) // 2
        del self._starts[1 : half + 1], self._ends[:half]


def earliest(resources: tuple[Resource, ...], ready_s: float, duration_s: float) -> float:
    """The first moment from `ready_s` on at which all `resources` are free for `duration_s`."""
    if len(resources) == 1:
        return resources[0].earliest(ready_s, duration_s)
    start_s, settled = ready_s, False
    while not settled:
        later_s = max(r.earliest(start_s, duration_s) for r in resources)
        start_s, settled = later_s, later_s == start_s
    return start_s
