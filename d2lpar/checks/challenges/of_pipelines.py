"""Puzzles of pipelines: an order of passes, and a cut into stages. Answers are plain data."""

from __future__ import annotations

import random
from itertools import accumulate, combinations, pairwise

from ...machines import Link
from ...parallelism.pipeline.conformance import check, in_flight
from ...parallelism.pipeline.costs import StageCost
from ...parallelism.pipeline.operations import KINDS, Operation, Orders
from ...parallelism.pipeline.operations import orders as orders_of
from ...parallelism.pipeline.schedules import one_f_one_b
from ...parallelism.pipeline.simulation import Simulation
from ...trials.calling import Called
from ...trials.evidence import schedule_of
from ..verdict import Wrong
from .evidence import kind
from .puzzle import Outcome

RANKS, MICRO_BATCHES = 4, (8, 16)
PASS_S = 1e-3
LINK = Link("a slow network", latency_s=20e-6, bytes_per_s=1e9)
CUT_MICRO_BATCHES = 8
# Times as long as the best cut takes: that into equal numbers of layers at least, and that with the
# smallest slowest stage at most.
EQUAL, BALANCED = 1.3, 1.1
TEXT_PASSES = 'rank {rank}: expected a list of ("F", 0), ("B", 0) and so on, got {got}'
TEXT_FINDING = "{finding}. (1F2: rank 1, forward, micro-batch 2)"
TEXT_HELD = "rank {rank} holds {held} micro-batches at once, and {allowed} may be"
TEXT_CUT = (
    "{layers} layers in {stages} stages: expected a list of {stages} whole numbers from 1 on, the "
    "layers of each stage, {layers} in all; got {got}"
)


def schedule(answer: Called, seed: int) -> Outcome:
    """`schedule(rank, ranks, micro_batches)`: the passes of a rank, in order, `ranks` held at most.

    The figure is how long a rank idles, in passes forward and backward of a micro-batch.
    """
    source = random.Random(seed)
    _orders(answer, RANKS, RANKS)
    _orders(answer, source.choice((2, 3, 5)), source.randint(5, 9))
    micro_batches = source.randint(*MICRO_BATCHES)
    run = schedule_run(_orders(answer, RANKS, micro_batches))
    idle = run.bubble * run.step_s / (3 * PASS_S)
    text = f"with {micro_batches} micro-batches the ranks idle for {run.bubble:.1%} of the step"
    par = schedule_run(orders_of(one_f_one_b(RANKS, micro_batches)))
    return Outcome(idle, text, schedule_of(run.timeline()), schedule_of(par.timeline()))


def schedule_run(orders: Orders) -> Simulation:
    """A step whose backward passes take twice as long as forward ones."""
    return Simulation.of(orders, [StageCost(PASS_S, 2 * PASS_S)] * len(orders))


def _orders(answer: Called, ranks: int, micro_batches: int) -> Orders:
    orders = [_order(answer(r, ranks, micro_batches), r) for r in range(ranks)]
    findings = check(orders, stages=ranks, micro_batches=micro_batches)
    if findings:
        raise Wrong(TEXT_FINDING.format(finding=findings[0]))
    for rank, held in enumerate(in_flight(orders)):
        if held > ranks:
            raise Wrong(TEXT_HELD.format(rank=rank, held=held, allowed=ranks))
    return orders


def _order(got: object, rank: int) -> list[Operation]:
    fine = isinstance(got, list | tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and pair[0] in KINDS and type(pair[1]) is int
        for pair in got
    )
    if not fine:
        raise Wrong(TEXT_PASSES.format(rank=rank, got=kind(got)))
    assert isinstance(got, list | tuple)
    return [Operation(name, rank, m) for name, m in got]


# --- the cut --------------------------------------------------------------------------------------


Network = tuple[list[float], list[int], int]  # seconds, bytes that are sent, stages


def networks(seed: int) -> list[tuple[Network, Simulation]]:
    """Seconds of the layers, bytes that each hands on, and the number of stages; and the step of
    the best cut."""
    source = random.Random(seed)
    found = []
    for layers, stages in ((10, 4), (12, 4), (14, 3)):
        best = None
        while best is None:
            seconds = [source.choice((0.3, 0.6, 1.2, 2.4, 4.8)) * 1e-3 for _ in range(layers)]
            sent = [source.choice((1, 2, 4, 8, 16, 32)) * 500_000 for _ in range(layers)]
            best = _best_cut(seconds, sent, stages)
        found.append(((seconds, sent, stages), best))
    return found


def _best_cut(seconds: list[float], sent: list[int], stages: int) -> Simulation | None:
    """Of all cuts the step of the shortest; None if equal numbers of layers do nearly as well, or
    balanced stages do badly."""
    layers = len(seconds)
    every = [
        [b - a for a, b in pairwise((0, *ends, layers))]
        for ends in combinations(range(1, layers), stages - 1)
    ]
    equal = [layers // stages + (i < layers % stages) for i in range(stages)]
    balanced = min(every, key=lambda counts: _slowest_s(counts, seconds, sent))
    balanced_s = cut_run(balanced, seconds, sent).step_s
    if cut_run(equal, seconds, sent).step_s < EQUAL * balanced_s:
        return None
    best = min((cut_run(counts, seconds, sent) for counts in every), key=lambda run: run.step_s)
    return best if balanced_s <= BALANCED * best.step_s else None


def _slowest_s(counts: list[int], seconds: list[float], sent: list[int]) -> float:
    """How long the slowest stage computes or sends for a micro-batch."""
    ends = [*accumulate(counts)]
    computing = max(3 * sum(seconds[a:b]) for a, b in pairwise([0, *ends]))
    return max(computing, *(sent[end - 1] / LINK.bytes_per_s for end in ends[:-1]))


def cut(answer: Called, seed: int) -> Outcome:
    """`cut(seconds, sent_bytes, stages)`: how many layers each stage has.

    The figure is the time of all steps together, in percent of that of the best cuts.
    """
    total_s, best_s = 0.0, 0.0
    shown: list[Simulation] = []
    for (seconds, sent, stages), best in networks(seed):
        got = answer([*seconds], [*sent], stages)
        run = cut_run(_checked(got, len(seconds), stages), seconds, sent)
        total_s, best_s = total_s + run.step_s, best_s + best.step_s
        shown = shown or [run, best]
    mine, other = (schedule_of(run.timeline()) for run in shown)
    praise = "neither the work nor the sending holds the others up"
    return Outcome(100 * total_s / best_s, praise, mine, other)


def cut_run(counts: list[int], seconds: list[float], sent: list[int]) -> Simulation:
    """A step of 8 micro-batches in the order 1F1B, with layers cut so."""
    ends = [*accumulate(counts)]
    costs = [
        StageCost(sum(seconds[start:end]), 2 * sum(seconds[start:end]), sent_bytes=sent[end - 1])
        for start, end in pairwise([0, *ends])
    ]
    return Simulation.of(orders_of(one_f_one_b(len(counts), CUT_MICRO_BATCHES)), costs, LINK)


def _checked(got: object, layers: int, stages: int) -> list[int]:
    fine = (
        isinstance(got, list | tuple)
        and len(got) == stages
        and all(type(count) is int and count > 0 for count in got)
        and sum(got) == layers
    )
    if not fine:
        raise Wrong(TEXT_CUT.format(layers=layers, stages=stages, got=kind(got)))
    assert isinstance(got, list | tuple)
    return list(got)
