"""The exercises of lesson 07."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise

from ..parallelism.pipeline.conformance import check, in_flight
from ..parallelism.pipeline.operations import BACKWARD, FORWARD, Operation, Orders
from ..parallelism.pipeline.schedules import gpipe, in_slots
from ..trials.calling import Called
from .verdict import Wrong, exercise, is_whole


@exercise
def balance(answer: Called) -> str:
    """`balance(seconds, stages)`: how many layers each stage has, the slowest as fast as it can be.

    The layers take `seconds` each; a stage is one or more neighbouring layers.
    """
    losses = []
    for seconds, stages in _networks():
        best_s = _best_s(tuple(seconds), stages)
        _check_cut(answer(list(seconds), stages), seconds, stages, best_s)
        losses.append(_slowest_s(seconds, _even(len(seconds), stages)) / best_s - 1)
    return (
        "the slowest stage is as fast as it can be, and a pipeline is as fast as its slowest "
        f"stage: with as many layers in each it would be {max(losses):.0%} slower on one of these "
        f"networks, {sum(losses) / len(losses):.0%} on average"
    )


def _networks() -> Iterable[tuple[list[float], int]]:
    yield [1, 1, 1, 1, 4, 4], 2
    yield [4, 4, 4, 1, 1], 2  # filling as far as the mean, 7, takes a layer too few
    yield [3, 3, 8, 2], 2  # filling until the mean, 8, is reached takes one too many
    yield [9, 1, 1, 1, 1, 1, 1, 1], 4
    yield [2, 2, 2, 2, 2, 2, 7], 3
    yield [5, 4, 3], 3  # a layer a stage
    yield [1, 2, 3], 1
    source = random.Random(6)
    for layers, stages in ((8, 2), (9, 3), (11, 4), (12, 5)):
        yield [source.randrange(1, 30) for _ in range(layers)], stages


def _check_cut(got: object, seconds: list[float], stages: int, best_s: float) -> None:
    call = f"balance({seconds}, {stages})"
    if not (
        isinstance(got, list | tuple)
        and len(got) == stages
        and all(is_whole(count) for count in got)
    ):
        raise Wrong(f"{call}: expected a list of {stages} numbers of layers, got {got!r}")
    if min(got) < 1:
        raise Wrong(
            f"{call}: got {got}: expected a layer at least in each stage; a GPU without one works "
            "on nothing, and only makes the way longer"
        )
    if sum(got) != len(seconds):
        raise Wrong(
            f"{call}: {got} are {sum(got)} layers, expected {len(seconds)}: every layer is in one "
            "stage"
        )
    if (got_s := _slowest_s(seconds, got)) > best_s * (1 + 1e-9):
        why = (
            "As many layers are not as much work"
            if sorted(got) == sorted(_even(len(seconds), stages))
            else "Filling one stage after the other up to the mean leaves too much or too little "
            "for the last; compare whole cuts"
        )
        raise Wrong(
            f"{call}: expected {best_s:g} s for the slowest stage, got {got_s:g} s with {got}: all "
            f"others wait for it, in every micro-batch. {why}"
        )


def _best_s(seconds: tuple[float, ...], stages: int) -> float:
    """The last stage may begin anywhere; what is before it is cut as well as it can be."""

    @cache
    def best_s(layers: int, stages: int) -> float:
        if stages == 1:
            return sum(seconds[:layers])
        cuts = range(stages - 1, layers)
        return min(max(best_s(cut, stages - 1), sum(seconds[cut:layers])) for cut in cuts)

    return best_s(len(seconds), stages)


def _slowest_s(seconds: list[float], counts: Iterable[int]) -> float:
    places = pairwise([0, *accumulate(counts)])
    return max(sum(seconds[start:end]) for start, end in places)


def _even(layers: int, stages: int) -> list[int]:
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]


@exercise
def one_f_one_b(answer: Called) -> str:
    """`one_f_one_b(rank, ranks, micro_batches)`: what a rank does, ("F" or "B", micro-batch) each.

    Warm-up forwards, then one forward and one backward in turn, then the remaining backwards: as
    short as GPipe, and rank r holds the activations of `ranks - r` micro-batches at most.
    """
    for ranks, micro_batches in ((4, 8), (3, 4), (1, 3), (2, 9), (4, 2), (7, 3), (5, 5)):
        orders = [_order(answer, rank, ranks, micro_batches) for rank in range(ranks)]
        where = f"{ranks} ranks, {micro_batches} micro-batches"
        _check_orders(orders, ranks, micro_batches, where)
        _check_held(orders, ranks, where)
        _check_length(orders, ranks, micro_batches, where)
    ranks, micro_batches = 4, 8
    return (
        f"4 ranks take 8 micro-batches in {_slots(gpipe(ranks, micro_batches))} slots, as in "
        f"GPipe, and rank 0 holds {ranks} micro-batches instead of {micro_batches}. With 80 it "
        f"would still hold {ranks}"
    )


def _order(answer: Called, rank: int, ranks: int, micro_batches: int) -> list[Operation]:
    got = answer(rank, ranks, micro_batches)
    call = f"one_f_one_b({rank}, {ranks}, {micro_batches})"
    if not isinstance(got, list):
        raise Wrong(f'{call}: expected a list of ("F", micro_batch) and ("B", …), got {got!r}')
    for pair in got:
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and pair[0] in (FORWARD, BACKWARD)
            and is_whole(pair[1])
        ):
            raise Wrong(f'{call}: expected ("F", micro_batch) or ("B", micro_batch), got {pair!r}')
    _check_passes(got, call, micro_batches)
    return [Operation(kind, rank, micro_batch) for kind, micro_batch in got]


def _check_passes(got: list[tuple[str, int]], call: str, micro_batches: int) -> None:
    """Before `conformance`, which says of a missing pass that it might also be cut in two."""
    if any(not 0 <= micro_batch < micro_batches for _, micro_batch in got):
        return  # of which it says what is wrong
    for kind in (FORWARD, BACKWARD):
        for micro_batch in range(micro_batches):
            if (kind, micro_batch) not in got:
                raise Wrong(
                    f'{call}: ("{kind}", {micro_batch}) is missing: expected every micro-batch, '
                    f"0 to {micro_batches - 1}, once forward and once back on each rank"
                )


def _check_orders(orders: Orders, ranks: int, micro_batches: int, where: str) -> None:
    if findings := check(orders, stages=ranks, micro_batches=micro_batches):
        first, more = findings[0], len(findings) - 1
        also = f" (and {more} more)" if more else ""
        raise Wrong(
            f"{where}: {first}{also}. Expected every micro-batch once forward and once back on "
            "each rank, its number from 0 on, in an order in which nobody waits for ever. (1F2: "
            "rank 1, forward, micro-batch 2)"
        )


def _check_held(orders: Orders, ranks: int, where: str) -> None:
    for rank, held in enumerate(in_flight(orders)):
        if held > ranks - rank:
            raise Wrong(
                f"{where}: the order is possible, but rank {rank} holds the activations of {held} "
                f"micro-batches; expected {ranks - rank} at most. More forwards before the first "
                "backward make nothing faster: go back as soon as a gradient can be there"
            )


def _check_length(orders: Orders, ranks: int, micro_batches: int, where: str) -> None:
    got, expected = _slots(in_slots(orders)), _slots(gpipe(ranks, micro_batches))
    if got > expected:
        raise Wrong(
            f"{where}: the order is possible and holds little, but takes {got} slots; expected "
            f"{expected}, GPipe's. A gradient takes 2 (ranks - 1 - rank) slots to the last rank "
            "and back: with too few forwards before it, a rank idles meanwhile"
        )


def _slots(schedule: Iterable) -> int:
    return sum(1 for _ in schedule)


@exercise
def fewest_micro_batches(answer: Called) -> str:
    """`fewest_micro_batches(stages, share)`: the smallest M whose bubble is `share` at most.

    The bubble of K stages is (K - 1) / (M + K - 1) of the time; `share` is meant as it is written,
    0.1 as a tenth.
    """
    # The last five are hit exactly, where formulas with floats give one too many.
    for stages, share in (
        (3, 0.3), (4, 0.1), (2, 0.5), (8, 0.25), (16, 0.07), (1, 0.05), (4, 0.9), (64, 0.01),
        (4, 0.03), (4, 0.2), (28, 0.3), (22, 0.35), (64, 0.35),
    ):  # fmt: skip
        _check_fewest(answer(stages, share), stages, Fraction(str(share)), share)
    few, many = _fewest(8, Fraction("0.1")), _fewest(8, Fraction("0.01"))
    return (
        f"a bubble of a tenth takes {few / 8:.1f} micro-batches a stage (8 stages, {few}), one of "
        f"a hundredth {many / 8:.1f}: the last per cents cost the most, and small micro-batches "
        "use a GPU badly"
    )


def _check_fewest(got: object, stages: int, exact: Fraction, share: float) -> None:
    expected, call = _fewest(stages, exact), f"fewest_micro_batches({stages}, {share})"
    if not is_whole(got):
        raise Wrong(f"{call}: expected a whole number, {expected}, got {got!r}")
    if got == expected:
        return
    if got < 1:
        why = "a step has one micro-batch at least"
    elif got < expected:
        bubble = _bubble(stages, got)
        why = f"{got} leave {bubble} of the time, {float(bubble):.2%}, more than {share:.2%}"
    elif got == math.ceil((stages - 1) / exact):
        why = (
            "(K - 1) / M is the bubble beside the time of the work; its share of the whole step is "
            "(K - 1) / (M + K - 1)"
        )
    elif _bubble(stages, expected) == exact:
        why = (
            f"{expected} leave {_bubble(stages, expected)}, which is {share} exactly, and that is "
            "allowed. A formula may miss it by a rounding error, which ceil then makes a whole "
            "micro-batch; compare the bubble itself, or use fractions"
        )
    else:
        bubble = _bubble(stages, expected)
        why = f"{expected} do: they leave {bubble} of the time, {float(bubble):.2%}"
    raise Wrong(f"{call}: expected {expected}, got {got}: {why}")


def _bubble(stages: int, micro_batches: int) -> Fraction:
    return Fraction(stages - 1, micro_batches + stages - 1)


def _fewest(stages: int, share: Fraction) -> int:
    return max(1, math.ceil((stages - 1) * (1 - share) / share))
