"""Puzzles of pipelines: an order of passes, and a cut into stages. Answers are plain data."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

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

RANKS, MICRO_BATCHES, HELD = 4, 12, 4
PASS_S = 1e-3
LINK = Link("a slow network", latency_s=20e-6, bytes_per_s=1e9)
CUT_MICRO_BATCHES = 8
TEXT_PASSES = 'rank {rank}: expected a list of ("F", 0), ("B", 0) and so on, got {got}'
TEXT_FINDING = "{finding}. (1F2: rank 1, forward, micro-batch 2)"
TEXT_HELD = "rank {rank} holds {held} micro-batches at once, and {allowed} may be"
TEXT_CUT = (
    "{layers} layers in {stages} stages: expected a list of {stages} whole numbers from 1 on, the "
    "layers of each stage, {layers} in all; got {got}"
)


def schedule(answer: Called) -> Outcome:
    """`schedule(rank, ranks, micro_batches)`: the passes of a rank, in order, four held at most."""
    _orders(answer, 4, 4)
    _orders(answer, 3, 6)
    orders = _orders(answer, RANKS, MICRO_BATCHES)
    run = Simulation.of(orders, [StageCost(PASS_S, 2 * PASS_S)] * RANKS)
    text = f"the ranks idle for {run.bubble:.1%} of the step"
    return Outcome(100 * run.bubble, text, schedule_of(run.timeline()))


def _orders(answer: Called, ranks: int, micro_batches: int) -> Orders:
    orders = [_order(answer(r, ranks, micro_batches), r) for r in range(ranks)]
    findings = check(orders, stages=ranks, micro_batches=micro_batches)
    if findings:
        raise Wrong(TEXT_FINDING.format(finding=findings[0]))
    for rank, held in enumerate(in_flight(orders)):
        if held > HELD:
            raise Wrong(TEXT_HELD.format(rank=rank, held=held, allowed=HELD))
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


def networks() -> list[tuple[list[float], list[int], int]]:
    """Seconds of the layers, bytes that each hands on, and the number of stages."""
    source = random.Random(9)
    found = []
    for layers, stages in ((12, 4), (16, 4), (18, 3)):
        seconds = [round(source.choice((0.3, 0.6, 1.2, 2.4, 4.8)), 1) * 1e-3 for _ in range(layers)]
        sent = [source.choice((1, 2, 4, 8, 16, 32)) * 500_000 for _ in range(layers)]
        found.append((seconds, sent, stages))
    return found


def cut(answer: Called) -> Outcome:
    """`cut(seconds, sent_bytes, stages)`: how many layers each stage has; all steps together."""
    total_s = 0.0
    shown: dict = {}
    for seconds, sent, stages in networks():
        got = answer([*seconds], [*sent], stages)
        run = cut_run(_checked(got, len(seconds), stages), seconds, sent)
        total_s += run.step_s
        shown = shown or schedule_of(run.timeline())
    return Outcome(1e3 * total_s, "neither the work nor the sending holds the others up", shown)


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
