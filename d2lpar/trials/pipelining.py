"""Trials of lesson 07's core: orders of passes are played, and a student's times are drawn.

A pass is ("F" or "B", micro-batch); an order is the list of a stage's passes.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from ..parallelism.pipeline import BACKWARD, FORWARD, Operation, StageCost
from ..parallelism.pipeline.simulator import Simulator
from ..timeline import Span, Timeline
from .calling import within
from .evidence import schedule_of
from .plain import seen

CLOCK = "simulated"
SECONDS = {FORWARD: 1.0, BACKWARD: 2.0}  # of a pass, where an answer gives orders only
LONGEST_S = 10.0  # an answer's loop that does not end is ended then

Pass = tuple[str, int]
Orders = Sequence[Sequence[Pass]]
Played = tuple[int, str, int, float, float]  # stage, kind, micro-batch, start, end in seconds


def gpipe(answer: Callable, stages: int, micro_batches: int) -> dict[str, Any]:
    """The orders of all stages, and what of them can be run before all wait."""
    orders = answer(stages, micro_batches)
    spans, waits = play(_readable(orders))
    return {"orders": seen(orders), "waits": waits, "picture": _drawn(spans, bool(waits))}


def simulate(answer: Callable, orders: Orders, seconds: dict[str, float]) -> dict[str, Any]:
    """The times of passes, and whether the orders are still what they were."""
    given = deepcopy([list(order) for order in orders])
    with within(LONGEST_S):
        times = answer(given, dict(seconds))
    spans = [
        (stage, kind, m, start_s, end_s)
        for (kind, m, stage), (start_s, end_s) in _times(times)
        if start_s <= end_s
    ]
    changed = given != [list(order) for order in orders]
    return {"times": seen(times), "changed": changed, "picture": _drawn(spans)}


def deadlock(answer: Callable, orders: Orders, seconds: dict[str, float]) -> dict[str, Any]:
    """What an answer does with stages that wait for each other: raises, returns, or does not end.

    The picture is of the passes before that.
    """
    picture = _drawn(play(orders, seconds)[0], hangs=True)
    given = deepcopy([list(order) for order in orders])
    try:
        with within(LONGEST_S):
            times = answer(given, dict(seconds))
    except TimeoutError:
        return {"did": "ran on", "picture": picture}
    except Exception as error:
        return {"did": "raised", "error": type(error).__name__, "picture": picture}
    return {"did": "returned", "times": seen(times), "picture": picture}


def play(orders: Orders, seconds: dict[str, float] = SECONDS) -> tuple[list[Played], list[str]]:
    """The passes that run, and who then waits for what."""
    passes = [[Operation(k, stage, m) for k, m in order] for stage, order in enumerate(orders)]
    stages = range(len(passes))
    costs = [StageCost(seconds[FORWARD], seconds[BACKWARD])] * len(passes)
    at_once: dict = {(s, s + step): [] for s in stages for step in (-1, 1)}  # sending takes no time
    run = Simulator(passes, costs, stages, at_once)
    run.run()
    spans = [
        (stage, kind, m, start_s, end_s)
        for order, *times in zip(passes, run.starts_s, run.ends_s, strict=True)
        for (kind, stage, m), start_s, end_s in zip(order, *times, strict=False)
    ]
    held_up = [
        order[len(done)]
        for order, done in zip(passes, run.starts_s, strict=True)
        if order[len(done) :]
    ]
    return spans, [_waiting(kind, m, stage, len(passes) - 1) for kind, stage, m in held_up]


def needed(kind: str, m: int, stage: int, last: int) -> tuple[str, int, int] | None:
    """The pass whose result another one needs; None for the first stage's forward."""
    if kind == FORWARD:
        return (FORWARD, m, stage - 1) if stage else None
    return (BACKWARD, m, stage + 1) if stage < last else (FORWARD, m, stage)


def _waiting(kind: str, m: int, stage: int, last: int) -> str:
    need = needed(kind, m, stage, last)
    assert need is not None  # it would have run
    whose = "its own" if need[2] == stage else f"stage {need[2]}'s"
    return f"stage {stage} waits with {(kind, m)} for {whose} {need[:2]}"


def is_pass(value: object) -> bool:
    """Whether it is ("F" or "B", whole number)."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and value[0] in SECONDS
        and isinstance(value[1], numbers.Integral)
    )


def _readable(orders: object) -> list[list[Pass]]:
    """Of whatever was returned, what can be played."""
    if not isinstance(orders, list | tuple):
        return []
    rows = [order if isinstance(order, list | tuple) else [] for order in orders]
    return [[each for each in row if is_pass(each) and each[1] >= 0] for row in rows]


def _times(times: object) -> list[tuple[tuple[str, int, int], tuple[float, float]]]:
    """Of whatever was returned, what can be drawn."""
    found = times.items() if isinstance(times, dict) else ()
    return [(each, (span[0], span[1])) for each, span in found if is_timed(each, span)]


def is_timed(key: object, span: object) -> bool:
    """Whether it is (kind, micro-batch, stage), and two numbers of seconds."""
    return (
        isinstance(key, tuple)
        and len(key) == 3
        and is_pass(key[:2])
        and isinstance(key[2], numbers.Integral)
        and min(key[1:]) >= 0
        and isinstance(span, list | tuple)
        and len(span) == 2
        and all(isinstance(s, numbers.Real) and math.isfinite(s) for s in span)
    )


def _drawn(spans: list[Played], hangs: bool = False) -> dict:
    """The picture of passes, with the share of the time in which stages have nothing to do."""
    timeline = Timeline(CLOCK)
    for stage, kind, m, start_s, end_s in sorted(spans):
        timeline.add(Span(f"stage {stage}", 0, "compute", f"{stage}{kind}{m}", start_s, end_s))
    note = "which then hangs" if hangs else f"bubble {bubble(spans):.0%}"
    return schedule_of(timeline, note) if spans else {}


def bubble(spans: Sequence[Played]) -> float:
    """The share of the time in which the stages do nothing, 0 to 1."""
    stages = {stage for stage, *_ in spans}
    whole_s = len(stages) * max((end_s for *_, end_s in spans), default=0.0)
    busy_s, free_s = 0.0, dict.fromkeys(stages, 0.0)
    for stage, _, _, start_s, end_s in sorted(spans, key=lambda span: span[3]):
        busy_s += max(0.0, end_s - max(start_s, free_s[stage]))  # two at once count as one
        free_s[stage] = max(end_s, free_s[stage])
    return 1 - busy_s / whole_s if whole_s else 0.0
