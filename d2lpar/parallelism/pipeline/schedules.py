"""Schedules of pipelines, as time slots: which rank does what, and when.

A schedule is a generator of slots, tuples with one entry a rank, an operation or None. A slot takes
as long as one operation, be it F, B, I or W, and what an operation needs was done in an earlier
slot. Machines take different times for them: executors and simulators keep to the order of each
rank, `operations.orders`. Stage s is on rank s % ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from ...timeline.inputs import Count, checked, require
from .operations import (
    BACKWARD,
    FORWARD,
    INPUTS,
    WEIGHTS,
    Key,
    Operation,
    Orders,
    Slot,
    check_size,
    feeds,
    key,
    waits,
)


def gpipe(ranks: int, micro_batches: int, *, last_first: bool = False) -> Iterator[Slot]:
    """All forwards, then all backwards: Huang et al., "GPipe" (2019).

    Every rank holds the activations of all micro-batches. `last_first=True` begins the backwards
    with the last micro-batch, as the paper's figure 2(c) and torchgpipe do; without it their order
    is that of the forwards, as in torch.distributed.pipelining.
    """
    # slot  rank 0  rank 1  rank 2       3 ranks, 2 micro-batches
    #    0     0F0
    #    1     0F1     1F0
    #    2             1F1     2F0
    #    3                     2F1
    #    4                     2B0
    #    5             1B0     2B1
    #    6     0B0     1B1
    #    7     0B1
    _check_counts(ranks, micro_batches)
    order = range(micro_batches)
    back = order[::-1] if last_first else order
    yield from in_slots(
        [_passes(FORWARD, rank, order) + _passes(BACKWARD, rank, back) for rank in range(ranks)]
    )


def one_f_one_b(ranks: int, micro_batches: int) -> Iterator[Slot]:
    """1F1B: each backward as soon as it can be, one forward between two of them.

    As long as GPipe, but rank r holds the activations of `ranks - r` micro-batches at most:
    PipeDream-Flush (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021).
    """
    # slot  rank 0  rank 1  rank 2       3 ranks, 4 micro-batches
    #    0     0F0
    #    1     0F1     1F0
    #    2     0F2     1F1     2F0
    #    3                     2B0
    #    4             1B0     2F1
    #    5     0B0     1F2     2B1
    #    6     0F3     1B1     2F2
    #    7     0B1     1F3     2B2
    #    8             1B2     2F3
    #    9     0B2             2B3
    #   10             1B3
    #   11     0B3
    _check_counts(ranks, micro_batches)
    order = range(micro_batches)
    yield from in_slots(
        [
            _one_by_one(
                _passes(FORWARD, rank, order),
                _passes(BACKWARD, rank, order),
                warm_up=ranks - 1 - rank,
            )
            for rank in range(ranks)
        ]
    )


def interleaved_1f1b(ranks: int, micro_batches: int, chunks: int = 2) -> Iterator[Slot]:
    """1F1B with several parts of the network on each rank, `ranks * chunks` stages in all.

    A rank takes `ranks` micro-batches through its first stage, then these through its second, and
    so on, which divides the bubble by `chunks`; more is sent and held. Narayanan et al., "Efficient
    Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), section 2.2.

    Raises ValueError if `micro_batches` is no multiple of `ranks`.
    """
    # slot  rank 0  rank 1       2 ranks, 2 micro-batches, 2 chunks
    #    0     0F0
    #    1     0F1     1F0
    #    2     2F0     1F1
    #    3     2F1     3F0
    #    4             3B0
    #    5     2B0     3F1
    #    6             3B1
    #    7     2B1     1B0
    #    8     0B0     1B1
    #    9     0B1
    _check_counts(ranks, micro_batches, chunks=chunks)
    if micro_batches % ranks:
        raise ValueError(
            f"interleaved 1F1B takes a multiple of its {ranks} ranks as the number of "
            f"micro-batches, not {micro_batches}: take {-(-micro_batches // ranks) * ranks}"
        )
    stages = [range(rank, ranks * chunks, ranks) for rank in range(ranks)]
    yield from in_slots(
        [
            _one_by_one(
                _in_rounds(FORWARD, own, ranks, micro_batches),
                _in_rounds(BACKWARD, own[::-1], ranks, micro_batches),
                warm_up=(chunks - 1) * ranks + 2 * (ranks - 1 - rank),
            )
            for rank, own in enumerate(stages)
        ]
    )


def zero_bubble_h1(ranks: int, micro_batches: int) -> Iterator[Slot]:
    """1F1B whose backwards are cut in two: I, for which others wait, and W, which fills gaps.

    Rank r lets W lag `r` micro-batches behind I, so that each rank holds the activations of
    `ranks` micro-batches at most, as many as rank 0 does in 1F1B: schedule ZB-H1 of Qi et al.,
    "Zero Bubble Pipeline Parallelism" (2024), section 2.1.
    """
    # slot  rank 0  rank 1  rank 2       3 ranks, 3 micro-batches
    #    0     0F0
    #    1     0F1     1F0
    #    2     0F2     1F1     2F0
    #    3                     2I0
    #    4             1I0     2F1
    #    5     0I0     1F2     2I1
    #    6     0W0     1I1     2F2
    #    7     0I1     1W0     2I2
    #    8     0W1     1I2     2W0
    #    9     0I2     1W1     2W1
    #   10     0W2     1W2     2W2
    _check_counts(ranks, micro_batches)
    order = range(micro_batches)
    yield from in_slots(
        [
            _with_weights(
                _one_by_one(
                    _passes(FORWARD, rank, order),
                    _passes(INPUTS, rank, order),
                    warm_up=ranks - 1 - rank,
                ),
                lag=rank,
            )
            for rank in range(ranks)
        ]
    )


SCHEDULES: dict[str, Callable[[int, int], Iterator[Slot]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved_1f1b,
    "zero_bubble_h1": zero_bubble_h1,
}


@checked
def in_slots(orders: Orders) -> Iterator[Slot]:
    """Each operation of each rank's order in the first slot in which it can be.

    Raises ValueError if the orders let nobody go on: `conformance.check` says why.
    """
    last = max((op.stage for order in orders for op in order), default=0)
    fed: set[Key] = {op for order in orders for op in order if not waits(op)}
    left = [iter(order) for order in orders]
    heads = [next(order, None) for order in left]
    while any(heads):
        slot = tuple([op if op is not None and key(op) in fed else None for op in heads])
        if not any(slot):
            names = ", ".join(str(op) for op in heads if op is not None)
            raise ValueError(f"no rank can go on with {names}: see what `check` says of the orders")
        yield slot
        for rank, op in enumerate(slot):
            if op is not None:
                fed.update(feeds(op, last))
                heads[rank] = next(left[rank], None)


# --- orders of one rank ---------------------------------------------------------------------------


def _passes(kind: str, stage: int, micro_batches: Iterable[int]) -> list[Operation]:
    return [Operation(kind, stage, m) for m in micro_batches]


def _in_rounds(kind: str, stages: Sequence[int], size: int, micro_batches: int) -> list[Operation]:
    """`size` micro-batches through one stage after the other, then the next ones."""
    rounds = [range(first, first + size) for first in range(0, micro_batches, size)]
    return [op for order in rounds for stage in stages for op in _passes(kind, stage, order)]


def _one_by_one(
    forwards: list[Operation], backwards: list[Operation], *, warm_up: int
) -> list[Operation]:
    """Some forwards (warm-up), then one forward and one backward in turn, then what is left."""
    ahead, rest = forwards[:warm_up], forwards[warm_up:]
    steady = [op for pair in zip(rest, backwards, strict=False) for op in pair]
    return ahead + steady + backwards[len(rest) :]


def _with_weights(order: list[Operation], *, lag: int) -> list[Operation]:
    """After each I the W of the micro-batch `lag` before; those that are left at the end."""
    found: list[Operation] = []
    due: deque[Operation] = deque()
    for op in order:
        found.append(op)
        if op.kind == INPUTS:
            due.append(op._replace(kind=WEIGHTS))
            found += [due.popleft()] if len(due) > lag else []
    return [*found, *due]


def _check_counts(ranks: int, micro_batches: int, *, chunks: int = 1) -> None:
    require("a schedule", Count, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    check_size(ranks=ranks, slots=2 * (chunks * micro_batches + ranks))
