"""A recorded run, replayed with something in it changed: its graph of dependencies, put on a clock.

Each step begins when all before it have ended, and as much later as it did in the recording, when
an engine or a link was not free yet. A collective begins on all its devices together. Replayed as
it was, a run takes as long as it took. The method is that of Daydream (Zhu, Phanishayee and
Pekhimenko, "Daydream: Accurately Estimating the Efficacy of Optimizations for DNN Training", 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ....timeline import Span
from ....timeline.dependencies import TINY_S, Step, steps_of

Node = tuple[str, int]  # a process, and the number of one of its steps


@dataclass(frozen=True)
class Change:
    """What is otherwise: how long a span lasts (seconds), and whether the host waits in it for what
    it waited for."""

    duration_s: Callable[[Span], float] = lambda span: span.duration_s
    waits: Callable[[Span], bool] = lambda span: True


@dataclass(eq=False)
class _Unit:
    """Steps that begin together: one, or those of a collective; and what is before them."""

    nodes: list[Node]
    before: list[_Unit] = field(default_factory=list)
    lag_s: float = 0.0
    end_s: float | None = None


class Replay:
    """The spans of a part of a run, with their dispatches; what lacks one is left out."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._steps = steps_of(_with_dispatch(list(spans)))
        self._unit_of: dict[Node, _Unit] = {}
        self._units = self._joined()
        for unit in self._units:
            nodes = self._before(unit)
            unit.before = [self._unit_of[node] for node in nodes]
            before_s = [self._step(node).end_s for node in nodes]
            start_s = self._step(unit.nodes[0]).start_s
            unit.lag_s = start_s - max(before_s) if before_s else start_s

    def seconds(
        self, change: Change | None = None, *, window_s: tuple[float, float] | None = None
    ) -> float:
        """How long it takes from the first start to the last end; or between the ends of what
        devices had done last at two times of the recording."""
        change = change or Change()
        for unit in self._units:
            unit.end_s = None
        ends = [self._end_s(unit, change) for unit in self._units]
        if window_s is not None:
            first, last = (self._last_before(time_s) for time_s in window_s)
            return (last.end_s or 0.0) - (first.end_s or 0.0)
        starts = [step.start_s for steps in self._steps.values() for step in steps]
        return max(ends, default=0.0) - min(starts, default=0.0)

    def _last_before(self, time_s: float) -> _Unit:
        """What devices had done last at a time of the recording."""
        steps = [(self._step(unit.nodes[0]), unit) for unit in self._units]
        done = [
            (s.end_s, unit) for s, unit in steps if not s.on_host and s.end_s <= time_s + TINY_S
        ]
        return max(done, key=lambda each: each[0])[1] if done else self._units[0]

    def _step(self, node: Node) -> Step:
        return self._steps[node[0]][node[1]]

    def _joined(self) -> list[_Unit]:
        """The units; those of a collective have begun and ended together."""
        together: dict[tuple, _Unit] = {}
        units = []
        for process, steps in self._steps.items():
            for number, step in enumerate(steps):
                node, span = (process, number), step.span
                unit = _Unit([node])
                if span.kind == "collective" and len(span.group) > 1:
                    key = span.group, span.start_s, span.end_s
                    unit = together.setdefault(key, unit)
                    if unit.nodes[-1] != node:
                        unit.nodes.append(node)
                        self._unit_of[node] = unit
                        continue
                self._unit_of[node] = unit
                units.append(unit)
        return units

    def _before(self, unit: _Unit) -> list[Node]:
        return [(node[0], each) for node in unit.nodes for each in self._step(node).before]

    def _left_before(self, unit: _Unit, change: Change) -> list[_Unit]:
        """What is still before a unit; of a wait that is no more, what the host has done."""
        span = self._step(unit.nodes[0]).span
        if span.kind != "wait" or change.waits(span):
            return unit.before
        return [other for other in unit.before if self._step(other.nodes[0]).on_host]

    def _end_s(self, wanted: _Unit, change: Change) -> float:
        """When a unit ends; without recursion, as chains are as long as the run. Of steps without
        length, which may lead in a circle, one begins first."""
        stack, begun = [wanted], set[int]()
        while stack:
            unit = stack[-1]
            if unit.end_s is not None:
                stack.pop()
                continue
            before = self._left_before(unit, change)
            begun.add(id(unit))
            open_units = [o for o in before if o.end_s is None and id(o) not in begun]
            if open_units:
                stack += open_units
                continue
            ready_s = max((other.end_s or 0.0 for other in before), default=0.0)
            unit.end_s = ready_s + unit.lag_s + self._duration_s(unit, change)
            stack.pop()
        assert wanted.end_s is not None
        return wanted.end_s

    def _duration_s(self, unit: _Unit, change: Change) -> float:
        """That of the longest of its steps; of a wait, what is left when all has ended."""
        durations = []
        for node in unit.nodes:
            step = self._step(node)
            share = change.duration_s(step.span)
            if step.span.kind == "wait":  # the time before that is the graph's
                share = min(share, step.end_s - step.start_s) if change.waits(step.span) else 0.0
            durations.append(share)
        return max(durations)


def _with_dispatch(spans: Sequence[Span]) -> list[Span]:
    """Those of devices that a span of the host has queued, and all of the host."""
    queued = {span.correlation for span in spans if span.device == "host"}
    return [span for span in spans if span.device == "host" or span.correlation in queued]
