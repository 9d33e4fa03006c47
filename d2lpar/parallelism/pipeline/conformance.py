"""What is wrong with a schedule, and where: passes missing or early, deadlocks, too much memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Required, TypedDict, Unpack

from ...timeline.inputs import Count, Index, checked
from .deadlock import blocked, stuck
from .findings import Finding, ScheduleError, everywhere
from .operations import (
    BACKWARD,
    FORWARD,
    INPUTS,
    KINDS,
    WEIGHTS,
    Key,
    Operation,
    Orders,
    check_size,
)


class CheckOptions(TypedDict, total=False):
    """What `check` is asked, but for the orders."""

    stages: Required[int]
    micro_batches: Required[int]
    owners: Sequence[int] | None
    most_in_flight: int | Sequence[int] | None
    receives_ahead: int | None


@checked
def check(
    orders: Orders,
    *,
    stages: Count,
    micro_batches: Count,
    owners: Sequence[Index] | None = None,
    most_in_flight: Index | Sequence[Index] | None = None,
    receives_ahead: Index | None = 2,
) -> list[Finding]:
    """What is wrong with the orders of ranks; nothing if they can be run.

    1. Each micro-batch goes through each stage once: one F, and one B or one I and one W, on the
       rank that owns the stage: `owners[stage]` (None: `stage % len(orders)`).
    2. B and I come after the F of their stage, W after its I.
    3. Nobody waits for ever: F needs that of the stage before, B and I need that of the next stage.
    4. Nor does anybody with blocking sends. Between two operations a rank sends the result of the
       first, if another rank needs it, and meanwhile receives what the next `receives_ahead`
       operations need; it goes on when its result was received, and what the next one needs is
       there. 2 is what Megatron-LM's exchanges do, `send_forward_backward_recv_forward_backward`
       of interleaved schedules; 1 (`send_forward_recv_backward`) is enough for 1F1B, and 0, where
       a rank first sends and then receives, for GPipe. None: sends do not block.
    5. `in_flight(orders)` is `most_in_flight` at most, one number for all ranks or one for each.

    Orders are looked at for 3 once 1 and 2 are right, and for 4 once 3 is.
    """
    check_size(stages=stages, micro_batches=micro_batches)
    if owners is None:
        owners = [s % max(1, len(orders)) for s in range(stages)]
    _check_lengths(len(orders), stages, owners, most_in_flight)
    findings = [*_strange(orders, stages, micro_batches, owners), *_early(orders)]
    findings += _counted(orders, stages, micro_batches, owners)
    if not findings:
        findings += stuck(orders, owners)
    if not findings and receives_ahead is not None:
        findings += blocked(orders, owners, receives_ahead)
    if most_in_flight is not None:
        findings += _crowded(orders, most_in_flight)
    return findings


def _check_lengths(
    ranks: int, stages: int, owners: Sequence[int], most_in_flight: int | Sequence[int] | None
) -> None:
    if len(owners) != stages:
        raise ValueError(f"owners are one for each of {stages} stages, not {[*owners]}")
    if isinstance(most_in_flight, Sequence) and len(most_in_flight) != ranks:
        raise ValueError(
            f"most_in_flight is a number, or one for each of {ranks} ranks, not {[*most_in_flight]}"
        )


def require(orders: Orders, **options: Unpack[CheckOptions]) -> None:
    """Raise `ScheduleError` with everything that `check`, whose options these are, finds."""
    if findings := check(orders, **options):
        raise ScheduleError(findings)


@checked
def in_flight(orders: Orders) -> list[int]:
    """How many micro-batches each rank holds activations of, at most: from F to B, or to W."""
    return [max(accumulate(map(_held, order)), default=0) for order in orders]


def _held(op: Operation) -> int:
    return {FORWARD: 1, BACKWARD: -1, WEIGHTS: -1}.get(op.kind, 0)


# --- passes ---------------------------------------------------------------------------------------


def _strange(
    orders: Orders, stages: int, micro_batches: int, owners: Sequence[int]
) -> Iterator[Finding]:
    """Operations that nobody asked for, and those on the wrong rank."""
    for rank, position, op in everywhere(orders):
        if op.kind not in KINDS:
            problem = f"is of no kind: these are {', '.join(KINDS)}"
        elif not 0 <= op.stage < stages:
            problem = f"is of no stage: they are 0 to {stages - 1}"
        elif not 0 <= op.micro_batch < micro_batches:
            problem = f"is of no micro-batch: they are 0 to {micro_batches - 1}"
        elif owners[op.stage] != rank:
            problem = f"belongs on rank {owners[op.stage]}, which owns stage {op.stage}"
        else:
            continue
        yield Finding(rank, position, op, problem)


def _counted(
    orders: Orders, stages: int, micro_batches: int, owners: Sequence[int]
) -> Iterator[Finding]:
    """Operations that are missing, and those that come again."""
    first: dict[Operation, tuple[int, int]] = {}
    for rank, position, op in everywhere(orders):
        if op in first:
            where = "rank {}, position {}".format(*first[op])
            yield Finding(rank, position, op, f"was done before: {where}")
        first.setdefault(op, (rank, position))
    for stage in range(stages):
        for m in range(micro_batches):
            forward, whole, inputs, weights = (Operation(kind, stage, m) for kind in KINDS)
            if forward not in first:
                yield Finding(owners[stage], None, forward, "is missing")
            if whole in first:
                for part in {inputs, weights} & first.keys():
                    yield Finding(*first[part], part, f"is a part of {whole}, which is there, too")
            elif first.keys().isdisjoint((inputs, weights)):
                problem = f"is missing: neither it nor {inputs} and {weights} are there"
                yield Finding(owners[stage], None, whole, problem)
            else:
                for part, other in ((inputs, weights), (weights, inputs)):
                    if part not in first:
                        yield Finding(owners[stage], None, part, f"is missing: {other} is there")


def _early(orders: Orders) -> Iterator[Finding]:
    """What comes before the pass of the same stage that it needs, if that comes at all."""
    for rank, order in enumerate(orders):
        places: dict[Key, int] = {op: position for position, op in reversed([*enumerate(order)])}
        for position, op in enumerate(order):
            needed = (INPUTS if op.kind == WEIGHTS else FORWARD, op.stage, op.micro_batch)
            if places.get(needed, -1) > position:
                problem = f"needs {Operation(*needed)}, which comes at position {places[needed]}"
                yield Finding(rank, position, op, problem)


def _crowded(orders: Orders, most: int | Sequence[int]) -> Iterator[Finding]:
    """The first forward of each rank that is one too many."""
    for rank, order in enumerate(orders):
        allowed = most if isinstance(most, int) else most[rank]
        held = list(accumulate(map(_held, order)))
        position = next((i for i, count in enumerate(held) if count > allowed), None)
        if position is not None:
            problem = (
                f"is micro-batch number {held[position]} in flight, and {allowed} may be: "
                "a backward pass must come first"
            )
            yield Finding(rank, position, order[position], problem)
