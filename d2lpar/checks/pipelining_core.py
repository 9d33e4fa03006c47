"""The core of lesson 07: GPipe's orders, and the simulator of orders, against tables by hand."""

from __future__ import annotations

import math

from ..parallelism.pipeline.operations import BACKWARD, FORWARD
from ..trials import pipelining as trials
from ..trials.calling import Called
from .verdict import Wrong, exercise

Times = dict[tuple[str, int, int], tuple[float, float]]

# Orders, seconds of a pass, and when each pass begins and ends: worked by hand.
F, B = FORWARD, BACKWARD
ONE_STAGE = [[(F, 0), (F, 1), (B, 0), (B, 1)]]
GPIPES = {stages: f"gpipe({stages}, 2)" for stages in (1, 2, 3)}  # of that stage: for messages
LAST_FIRST = [[(F, 1), (F, 0), (B, 0), (B, 1)]] * 2
ONE_F_ONE_B = [
    [(F, 0), (F, 1), (F, 2), (B, 0), (B, 1), (B, 2)],
    [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)],
    [(F, 0), (B, 0), (F, 1), (B, 1), (F, 2), (B, 2)],
]
TABLES: tuple[tuple[list[list[tuple[str, int]]], dict[str, float], list[str]], ...] = (
    (
        ONE_STAGE * 2,
        {F: 1, B: 2},
        ["F0 0-1  F1 1-2  B0 5-7  B1 7-9", "F0 1-2  F1 2-3  B0 3-5  B1 5-7"],
    ),
    (ONE_STAGE, {F: 1, B: 2}, ["F0 0-1  F1 1-2  B0 2-4  B1 4-6"]),
    (
        ONE_STAGE * 3,
        {F: 2, B: 3},
        [
            "F0 0-2  F1 2-4  B0 14-17  B1 17-20",
            "F0 2-4  F1 4-6  B0 11-14  B1 14-17",
            "F0 4-6  F1 6-8  B0 8-11  B1 11-14",
        ],
    ),
    (
        LAST_FIRST,
        {F: 3, B: 1},
        ["F1 0-3  F0 3-6  B0 10-11  B1 11-12", "F1 3-6  F0 6-9  B0 9-10  B1 10-11"],
    ),
    (
        ONE_F_ONE_B,
        {F: 1, B: 2},
        [
            "F0 0-1  F1 1-2  F2 2-3  B0 7-9  B1 10-12  B2 13-15",
            "F0 1-2  F1 2-3  B0 5-7  F2 7-8  B1 8-10  B2 11-13",
            "F0 2-3  B0 3-5  F1 5-6  B1 6-8  F2 8-9  B2 9-11",
        ],
    ),
)
# Stage 0 waits for its first gradient, and stage 1 for a forward pass that stage 0 does later.
HANGS = [[(F, 0), (B, 0), (F, 1), (B, 1)], [(F, 1), (F, 0), (B, 0), (B, 1)]]


@exercise
def gpipe(answer: Called) -> str:
    """`gpipe(stages, micro_batches)`: the order of each stage, a list of ("F", m) and ("B", m).

    First all forward passes, then all backward passes, both from micro-batch 0 on.
    """
    for stages, micro_batches in ((3, 4), (2, 3), (3, 2), (1, 1), (4, 8)):
        found = answer.tried(trials.gpipe, stages, micro_batches)
        call = f"gpipe({stages}, {micro_batches})"
        _check_rows(found["orders"], call, stages, micro_batches)
        if found["waits"]:
            raise Wrong(
                f"{call}: the stages wait for each other for ever, because "
                f"{', '.join(found['waits'])}; the picture has only the passes before that"
            )
        for stage, order in enumerate(found["orders"]):
            _check_gpipe(order, f"{call}: stage {stage}", micro_batches)
    return (
        "with 4 stages and 8 micro-batches each stage is idle in 3 of 11 turns forward, and in 3 "
        "of 11 back: while the pipeline fills, and while it empties"
    )


def _check_rows(orders: object, call: str, stages: int, micro_batches: int) -> None:
    if not isinstance(orders, list | tuple) or any(trials.is_pass(each) for each in orders):
        raise Wrong(f"{call}: expected a list with one order for each stage, got {orders!r}")
    if len(orders) != stages:
        raise Wrong(f"{call}: expected {stages} orders, one for each stage, got {len(orders)}")
    wanted = [(kind, m) for kind in (FORWARD, BACKWARD) for m in range(micro_batches)]
    for stage, order in enumerate(orders):
        where = f"{call}: stage {stage}"
        if not isinstance(order, list | tuple):
            raise Wrong(f'{where}: expected a list of ("F", m) and ("B", m), got {order!r}')
        for each in order:
            if not trials.is_pass(each):
                raise Wrong(f'{where}: expected ("F", m) or ("B", m), got {each!r}')
            if each not in wanted:
                raise Wrong(
                    f"{where}: {each} is of no micro-batch: they are 0 to {micro_batches - 1}"
                )
        for each in wanted:
            if (count := order.count(each)) != 1:
                raise Wrong(
                    f"{where}: {each} is there {count} times, expected once: every "
                    "micro-batch goes through every stage, forward and back"
                )


def _check_gpipe(order: list[tuple[str, int]], where: str, micro_batches: int) -> None:
    forwards = [m for kind, m in order if kind == FORWARD]
    backwards = [m for kind, m in order if kind == BACKWARD]
    if order == [(kind, m) for m in range(micro_batches) for kind in (FORWARD, BACKWARD)] != [
        (FORWARD, 0), (BACKWARD, 0)
    ]:  # fmt: skip
        raise Wrong(
            f"{where} takes each micro-batch back before the next one forward, so only one is on "
            "its way at a time: that is model parallelism. Expected all forward passes first"
        )
    if any(kind == BACKWARD for kind, _ in order[:micro_batches]):
        early = next(each for each in order if each[0] == BACKWARD)
        raise Wrong(
            f"{where} does {early} before its last forward pass. It can be run, and needs less "
            "memory, but GPipe does all forward passes first"
        )
    if backwards == list(range(micro_batches))[::-1] != backwards[::-1]:
        raise Wrong(
            f"{where} goes back with the last micro-batch first. That is a schedule, too, and "
            "just as short: the paper's figure has it. The lesson goes back from micro-batch 0 on, "
            "as PyTorch does"
        )
    for kind, found in (("forward", forwards), ("backward", backwards)):
        if found != list(range(micro_batches)):
            raise Wrong(
                f"{where}: the {kind} passes are those of {found}, expected 0 to "
                f"{micro_batches - 1} in order, so that no stage waits for one that comes late"
            )


@exercise
def simulate(answer: Called) -> str:
    """`simulate(orders, seconds)`: {(kind, micro-batch, stage): (start, end)} of all passes.

    A pass takes `seconds[kind]`, and begins when its stage is free and what it needs is there.
    Raises RuntimeError if all stages wait for each other.
    """
    for orders, seconds, rows in TABLES:
        found = answer.tried(trials.simulate, orders, seconds)
        expected = _times_of(rows)
        shown = GPIPES.get(len(orders)) if orders[0] == ONE_STAGE[0] else orders
        call = f"simulate({shown}, {seconds})"
        _check_keys(found["times"], expected, call)
        _check_times(found["times"], expected, orders, seconds, call)
        if found["changed"]:
            raise Wrong(
                f"{call}: all times are right, but your function has changed the orders that it "
                "was given, so whoever simulates them again simulates nothing. Take passes from a "
                "copy, such as `[list(order) for order in orders]`"
            )
    _check_deadlock(answer)
    orders, seconds, _ = TABLES[-1]
    answer.tried(trials.simulate, orders, seconds)  # whose picture is shown
    return "all starts and ends are those worked out by hand, and a deadlock is an error"


def _check_deadlock(answer: Called) -> None:
    found = answer.tried(trials.deadlock, HANGS, {F: 1, B: 2})
    _, waits = trials.play(HANGS)
    why = f"the orders {HANGS} hang, because {' and '.join(waits)}"
    if found["did"] == "ran on":
        raise Wrong(
            f"{why}: your function has not ended, either. If no stage has done a pass in a whole "
            "round, none ever will: raise RuntimeError then"
        )
    if found["did"] == "returned":
        raise Wrong(
            f"{why}: expected RuntimeError, got {found['times']!r}: who reads that believes that "
            "the step ends"
        )
    if found["error"] != "RuntimeError":
        raise Wrong(f"{why}: expected RuntimeError, got {found['error']}")


def _times_of(rows: list[str]) -> Times:
    """The times that a table says, in which "F0 0-1" is a pass with its start and its end."""
    found = {}
    for stage, row in enumerate(rows):
        for entry in row.split("  "):
            name, span = entry.split()
            start, end = map(float, span.split("-"))
            found[name[0], int(name[1:]), stage] = start, end
    return found


def _check_keys(got: object, expected: Times, call: str) -> None:
    if not isinstance(got, dict) or not got:
        raise Wrong(f"{call}: expected a dict, {{(kind, m, stage): (start, end)}}, got {got!r}")
    for key in expected:
        if key not in got:
            raise Wrong(f"{call}: there is no time of {key}: expected one for every pass")
    for key, span in got.items():
        if key not in expected:
            raise Wrong(f"{call}: there is a time of {key!r}, which is none of the passes")
        if not trials.is_timed(key, span):
            raise Wrong(f"{call}: expected (start, end) in seconds for {key}, got {span!r}")


def _check_times(
    got: Times, expected: Times, orders: list, seconds: dict[str, float], call: str
) -> None:
    # From the first on, because one that is wrong makes those after it wrong.
    for key, (start, end) in sorted(expected.items(), key=lambda item: item[1]):
        if not all(map(math.isclose, got[key], (start, end))):
            kind, _, stage = key
            if not math.isclose(got[key][1] - got[key][0], seconds[kind]):
                why = f"a pass of its kind takes {seconds[kind]} s"
            else:
                why = _why_then(key, start, got[key][0], expected, orders[stage])
            shown = f"{got[key][0]:g} to {got[key][1]:g} s"
            raise Wrong(f"{call}: {key}: expected {start:g} to {end:g} s, got {shown}: {why}")


def _why_then(
    key: tuple[str, int, int], start: float, got: float, expected: Times, order: list
) -> str:
    """What a pass waits for, of its own stage and of its neighbour."""
    kind, m, stage = key
    place = order.index((kind, m))
    last = max(s for _, _, s in expected)
    before = (*order[place - 1], stage) if place else None
    need = trials.needed(kind, m, stage, last)
    free = expected[before][1] if before else 0.0
    ready = expected[need][1] if need else 0.0
    told = f"stage {stage} is free at {free:g} s, and what it needs is there at {ready:g} s"
    if got > start:
        return f"{told}: nothing else holds it up"
    if got < free and before:
        return f"{told}: until then it works on {before[:2]}, and a stage does one pass at a time"
    return f"{told}, when {need} ends"
