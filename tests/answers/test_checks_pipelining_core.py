"""Wrong versions of lesson 07's core: what they are told, and what is drawn of them."""

import json

import pytest

from d2lpar import checks
from d2lpar.checks import pipelining_core
from d2lpar.parallelism import pipeline
from d2lpar.trials import pipelining as trials

GARBAGE = (3, "x", [], [None], {}, (1, 2), object(), lambda *_: None, {1: [1]}, [[("F", 9)]])
FIRST_TIMES = {("F", m, stage): (m + stage, m + stage + 1) for m in (0, 1) for stage in (0, 1)}


def orders(stages, micro_batches):
    order = [(kind, m) for kind in "FB" for m in range(micro_batches)]
    return [list(order) for _ in range(stages)]


def one_by_one(stages, micro_batches):
    """Plausible: model parallelism, as the lesson has begun."""
    return [[(kind, m) for m in range(micro_batches) for kind in "FB"] for _ in range(stages)]


def last_first(stages, micro_batches):
    """Plausible: as the figure of the paper."""
    return [order[:micro_batches] + order[:-1 - micro_batches:-1]
            for order in orders(stages, micro_batches)]  # fmt: skip


def gaps_and_all(stages, micro_batches):
    """Plausible: the table of the lesson, with its gaps."""
    rows = enumerate(orders(stages, micro_batches))
    return [[None] * stage + order for stage, order in rows]


def back_too_early(stages, micro_batches):
    """The first stage wants a gradient that the last one does not have yet."""
    first, *others = orders(stages, micro_batches)
    return [[*first[:2], first[micro_batches], *first[2:micro_batches],
             *first[micro_batches + 1:]], *others]  # fmt: skip


def with_warm_up(stages, micro_batches):
    """Right, and no GPipe: 1F1B."""
    made = pipeline.orders(pipeline.one_f_one_b(stages, micro_batches))
    return [[(op.kind, op.micro_batch) for op in order] for order in made]


def one_that_turns(stages, micro_batches):
    """One stage takes the micro-batches in another order: it runs, and is slower."""
    made = orders(stages, micro_batches)
    made[-1][:micro_batches] = made[-1][:micro_batches][::-1]
    return made


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (one_by_one, "that is model parallelism"),
        (last_first, "the paper's figure has it"),
        (gaps_and_all, 'stage 1: expected ("F", m) or ("B", m), got None'),
        (back_too_early, "stage 0 waits with ('B', 0) for stage 1's ('B', 0)"),
        (with_warm_up, "stage 0 does ('B', 0) before its last forward pass"),
        (one_that_turns, "stage 2: the forward passes are those of [3, 2, 1, 0]"),
        (lambda k, m: orders(k, m)[0], "one order for each stage"),
        (lambda k, m: orders(k - 1, m), "expected 3 orders, one for each stage, got 2"),
        (lambda k, m: orders(k, m + 1), "('F', 4) is of no micro-batch: they are 0 to 3"),
        (lambda k, m: [o[:-1] for o in orders(k, m)], "('B', 3) is there 0 times"),
        (lambda k, m: [o + o[-1:] for o in orders(k, m)], "('B', 3) is there 2 times"),
    ],
)
def test_other_orders_than_gpipes_are_told_what_they_are(answer, reason):
    verdict = checks.gpipe(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def drawn(verdict):
    """{(device, name): (start, end)} in seconds, of what is plain data."""
    spans = json.loads(json.dumps(verdict.picture))["spans"]
    return {(device, name): (a / 1e6, b / 1e6) for device, name, a, b in spans}


def test_an_order_is_drawn_as_the_package_simulates_it():
    verdict = checks.gpipe(orders)
    cost = pipeline.StageCost(1, 2)
    expected = pipeline.simulate(pipeline.orders(pipeline.gpipe(4, 8)), [cost] * 4)
    assert {name: span for (_, name), span in drawn(verdict).items()} == {
        span.name: (span.start_s, span.end_s) for span in expected
    }
    assert verdict.picture["note"] == "bubble 27%"  # 3 / 11


def test_of_orders_that_hang_what_runs_before_is_drawn():
    verdict = checks.gpipe(back_too_early)
    assert {name for _, name in drawn(verdict)} == {f"{s}F{m}" for s in range(3) for m in range(2)}
    assert "hangs" in verdict.picture["note"]


def right(orders, seconds):
    """By waves: whatever can begin, in the order of the stages."""
    found, left = {}, [list(order) for order in orders]
    while any(left):
        ready = []
        for stage, order in enumerate(left):
            need = order and trials.needed(*order[0], stage, len(left) - 1)
            if order and (need is None or need in found):
                ready.append((stage, need))
        if not ready:
            raise RuntimeError("deadlock")
        for stage, need in ready:
            kind, m = left[stage].pop(0)
            free = max((e for (_, _, s), (_, e) in found.items() if s == stage), default=0)
            start = max(free, found[need][1] if need else 0)
            found[kind, m, stage] = start, start + seconds[kind]
    return found


def needs_nothing(orders, seconds):
    """Each stage for itself."""
    return {
        (kind, m, stage): (sum(before), sum(before) + seconds[kind])
        for stage, order in enumerate(orders)
        for i, (kind, m) in enumerate(order)
        for before in [[seconds[each] for each, _ in order[:i]]]
    }


def never_busy(orders, seconds):
    """Plausible: as soon as what a pass needs is there."""
    found, last = {}, len(orders) - 1
    while len(found) < sum(map(len, orders)):
        for stage, order in enumerate(orders):
            for kind, m in order:
                need = trials.needed(kind, m, stage, last)
                if need is None or need in found:
                    start = found[need][1] if need else 0
                    found[kind, m, stage] = start, start + seconds[kind]
    return found


def in_turns(orders, seconds):
    """Plausible: rounds in which all stages wait for the slowest."""
    found, left, now = {}, [list(order) for order in orders], 0
    while any(left):
        heads = {s: o[0] for s, o in enumerate(left) if o}
        needs = {s: trials.needed(*head, s, len(left) - 1) for s, head in heads.items()}
        ready = [s for s, need in needs.items() if need is None or need in found]
        for stage in ready:
            kind, m = left[stage].pop(0)
            found[kind, m, stage] = now, now + seconds[kind]
        now += max(seconds[heads[stage][0]] for stage in ready)
    return found


def takes_the_orders_apart(orders, seconds):
    found = right(orders, seconds)
    for order in orders:
        order.clear()
    return found


def waits_for_ever(orders, seconds):
    """Plausible: nothing ends the loop."""
    try:
        return right(orders, seconds)
    except RuntimeError:
        while True:
            pass


def stops_quietly(orders, seconds):
    try:
        return right(orders, seconds)
    except RuntimeError:
        return {}


def trips_over_a_deadlock(orders, seconds):
    try:
        return right(orders, seconds)
    except RuntimeError:
        raise KeyError(("B", 0, 1)) from None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (needs_nothing, "('F', 0, 1): expected 1 to 2 s, got 0 to 1 s: stage 1 is free at 0 s, and "
                        "what it needs is there at 1 s, when ('F', 0, 0) ends"),
        (never_busy, "until then it works on ('F', 0), and a stage does one pass at a time"),
        (in_turns, "nothing else holds it up"),
        (takes_the_orders_apart, "has changed the orders"),
        (waits_for_ever, "has not ended, either"),
        (stops_quietly, "expected RuntimeError, got {}"),
        (trips_over_a_deadlock, "expected RuntimeError, got KeyError"),
        (lambda o, s: {k: e for k, (_, e) in right(o, s).items()}, "expected (start, end)"),
        (lambda o, s: {k: (a, a + 1) for k, (a, _) in right(o, s).items()}, "takes 2 s"),
        (lambda o, s: [*right(o, s)], "expected a dict"),
        (lambda o, s: FIRST_TIMES, "there is no time of ('B', 0, 0)"),
        (lambda o, s: {None: (0, 0), **right(o, s)}, "a time of None, which is none of"),
    ],
)  # fmt: skip
def test_a_simulator_that_is_wrong_is_told_what_a_pass_waits_for(monkeypatch, answer, reason):
    monkeypatch.setattr(trials, "LONGEST_S", 0.3)
    verdict = checks.simulate(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_wrong_times_are_drawn_as_they_are():
    verdict = checks.simulate(needs_nothing)
    assert drawn(verdict)["stage 1", "1F0"] == (0, 1)
    assert verdict.picture["note"] == "bubble 0%"


def test_the_tables_by_hand_are_what_the_package_says():
    for orders, seconds, rows in pipelining_core.TABLES:
        own = [
            [pipeline.Operation(kind, stage, m) for kind, m in order]
            for stage, order in enumerate(orders)
        ]
        costs = [pipeline.StageCost(seconds["F"], seconds["B"])] * len(orders)
        assert {
            span.name: (span.start_s, span.end_s) for span in pipeline.simulate(own, costs)
        } == {
            f"{stage}{kind}{m}": span
            for (kind, m, stage), span in pipelining_core._times_of(rows).items()
        }


def test_another_way_to_simulate_is_right():
    assert checks.simulate(right)


@pytest.mark.parametrize("name", ["gpipe", "simulate"])
def test_whatever_a_core_returns_is_judged(name):
    for value in GARBAGE:
        verdict = getattr(checks, name)(lambda *_, value=value: value)
        assert verdict.status == checks.WRONG, (value, verdict)


def test_a_stub_of_a_core_is_not_attempted():
    def simulate(orders, seconds):
        raise NotImplementedError

    assert checks.simulate(simulate).status == checks.NOT_YET
