"""Schedules as tables: against literals, torch's own orders, and what holds for all of them."""

import pytest

from d2lpar.parallelism.pipeline import (
    SCHEDULES,
    Operation,
    check,
    gpipe,
    in_flight,
    in_slots,
    interleaved_1f1b,
    one_f_one_b,
    orders,
    zero_bubble_h1,
)

SIZES = [(ranks, m) for ranks in range(1, 9) for m in range(1, 33)]


def table(text: str) -> list[tuple]:
    """Slots from text: a line a slot, a column a rank, "." for nothing."""
    return [tuple(map(operation, line.split())) for line in text.strip().splitlines()]


def operation(name: str) -> Operation | None:
    return None if name == "." else Operation(name[1], int(name[0]), int(name[2:]))


def too_early(slots: list[tuple], stages: int) -> list[Operation]:
    """Operations before whose slot what they need is not done, by the definition of each kind."""
    done, early = set(), []
    for slot in slots:
        for op in filter(None, slot):
            kind, stage, m = op.kind, op.stage, op.micro_batch
            after = [(k, stage + 1, m) for k in "BI"] if stage < stages - 1 else [("F", stage, m)]
            needed = {
                "F": [("F", stage - 1, m)] if stage else [],
                "B": after,
                "I": after,
                "W": [("I", stage, m)],
            }[kind]
            if needed and not done.intersection(needed):
                early.append(op)
        done.update((op.kind, op.stage, op.micro_batch) for op in slot if op)
    return early


def test_an_operation_that_comes_a_slot_too_early():
    slots = list(one_f_one_b(2, 2))
    assert too_early(slots, 2) == []
    early = [(slots[0][0], slots[1][1]), (slots[1][0], None), *slots[2:]]
    assert list(map(str, too_early(early, 2))) == ["1F0"]


def named(order: list[Operation]) -> str:
    return " ".join(map(str, order))


GPIPE = """
0F0  .    .
0F1  1F0  .
.    1F1  2F0
.    .    2F1
.    .    2B0
.    1B0  2B1
0B0  1B1  .
0B1  .    .
"""
ONE_F_ONE_B = """
0F0  .    .
0F1  1F0  .
0F2  1F1  2F0
.    .    2B0
.    1B0  2F1
0B0  1F2  2B1
0F3  1B1  2F2
0B1  1F3  2B2
.    1B2  2F3
0B2  .    2B3
.    1B3  .
0B3  .    .
"""
INTERLEAVED = """
0F0  .
0F1  1F0
2F0  1F1
2F1  3F0
.    3B0
2B0  3F1
.    3B1
2B1  1B0
0B0  1B1
0B1  .
"""
ZERO_BUBBLE_H1 = """
0F0  .    .
0F1  1F0  .
0F2  1F1  2F0
.    .    2I0
.    1I0  2F1
0I0  1F2  2I1
0W0  1I1  2F2
0I1  1W0  2I2
0W1  1I2  2W0
0I2  1W1  2W1
0W2  1W2  2W2
"""


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (gpipe(3, 2), GPIPE),
        (one_f_one_b(3, 4), ONE_F_ONE_B),
        (interleaved_1f1b(2, 2), INTERLEAVED),
        (zero_bubble_h1(3, 3), ZERO_BUBBLE_H1),
    ],
)
def test_tables(slots, expected):
    assert list(slots) == table(expected)


def test_zero_bubble_h1_as_its_authors_draw_it():
    # Qi et al. (2024), figure 3, top: 4 ranks, 8 micro-batches, 27 slots.
    slots = list(zero_bubble_h1(4, 8))
    assert len(slots) == 27
    assert named(orders(slots)[3]).startswith("3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1")
    assert all(None not in slot for slot in slots[-3:])  # W fills the tail


def test_gpipe_may_go_back_from_the_last_micro_batch():
    assert named(orders(gpipe(2, 3, last_first=True))[1]) == "1F0 1F1 1F2 1B2 1B1 1B0"


def test_slots_are_lazy_and_the_same_every_time():
    assert next(one_f_one_b(2, 10**4))[0] == operation("0F0")
    assert list(SCHEDULES["1f1b"](3, 5)) == list(one_f_one_b(3, 5))


def sizes_of(name: str) -> list[tuple[int, int]]:
    return [(p, m) for p, m in SIZES if name != "interleaved" or m % p == 0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_sound_and_holds_no_more_than_it_may(name):
    for ranks, m in sizes_of(name):
        slots = list(SCHEDULES[name](ranks, m))
        most = {
            "gpipe": [m] * ranks,
            "1f1b": [min(m, ranks - rank) for rank in range(ranks)],
            # The chunks before the last take a round each, then 2 more a rank (Megatron-LM).
            "interleaved": [min(2 * m, ranks + 2 * (ranks - rank) - 1) for rank in range(ranks)],
            "zero_bubble_h1": [min(m, ranks)] * ranks,
        }[name]
        stages = 2 * ranks if name == "interleaved" else ranks
        table = orders(slots)
        found = check(table, stages=stages, micro_batches=m, most_in_flight=most)
        assert found == [], (ranks, m)
        assert not too_early(slots, stages), (ranks, m)
        assert in_flight(table) == most, (ranks, m)


@pytest.mark.parametrize("name", SCHEDULES)
def test_slots_cannot_be_fewer_in_the_same_order(name):
    for ranks, m in sizes_of(name)[::5]:
        slots = list(SCHEDULES[name](ranks, m))
        assert list(in_slots(orders(slots))) == slots


def test_three_chunks_are_sound():
    for ranks, m in [(2, 2), (3, 6), (4, 12)]:
        slots = list(interleaved_1f1b(ranks, m, chunks=3))
        assert check(orders(slots), stages=3 * ranks, micro_batches=m) == []
        assert not too_early(slots, 3 * ranks)
        assert len(slots) == 2 * 3 * m + 2 * (ranks - 1)


def test_one_chunk_takes_as_long_as_1f1b():
    assert len(list(interleaved_1f1b(4, 8, chunks=1))) == len(list(one_f_one_b(4, 8)))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(0, 1), (2, 0)])
def test_counts_are_one_at_least(name, ranks, micro_batches):
    with pytest.raises(ValueError, match="must be a whole number from 1 on, not 0"):
        list(SCHEDULES[name](ranks, micro_batches))


def test_interleaved_needs_a_multiple():
    with pytest.raises(ValueError, match=r"multiple of its 4 ranks .* not 6: take 8"):
        list(interleaved_1f1b(4, 6))
    with pytest.raises(ValueError, match="chunks of a schedule must be a whole number"):
        list(interleaved_1f1b(4, 8, chunks=0))


def test_orders_that_cannot_go_on_have_no_slots():
    with pytest.raises(ValueError, match="no rank can go on with 0B0, 1F0"):
        list(in_slots([[operation("0B0"), operation("0F0")], [operation("1F0")]]))
    assert list(in_slots([[], []])) == []


# --- torch's own orders ---------------------------------------------------------------------------


def of_torch(name: str, ranks: int, micro_batches: int) -> list[str]:
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    actions = visualizer.get_schedule_ops(name, ranks, micro_batches)
    names = [[str(action) for action in order if action is not None] for order in actions]
    # Later versions also say when gradients are summed over replicas.
    return [" ".join(n for n in order if "REDUCE_GRAD" not in n) for order in names]


@pytest.mark.parametrize(("name", "own"), [("GPipe", gpipe), ("Interleaved1F1B", interleaved_1f1b)])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 6), (4, 4), (4, 12)])
def test_orders_are_torchs(name, own, ranks, micro_batches):
    assert of_torch(name, ranks, micro_batches) == [
        named(order) for order in orders(own(ranks, micro_batches))
    ]


def test_1f1b_is_torchs_but_for_the_last_rank_of_its_picture():
    *torchs, _ = of_torch("1F1B", 4, 8)
    *own, last = orders(one_f_one_b(4, 8))
    assert torchs == list(map(named, own))
    # `Schedule1F1B._step_microbatches` of the last rank: one warm-up forward, then in turn.
    assert named(last[:6]) == "3F0 3B0 3F1 3B1 3F2 3B2"


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 3), (3, 3), (4, 8)])
def test_zero_bubble_h1_is_torchs_with_one_stage_a_rank(ranks, micro_batches):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    if not hasattr(schedules, "_get_1f1b_rank_ops"):
        pytest.skip("this torch does not tell the order of a rank")
    for rank, order in enumerate(orders(zero_bubble_h1(ranks, micro_batches))):
        warm_up = min(ranks - 1 - rank, micro_batches)
        actions = schedules._get_1f1b_rank_ops(
            *(1, ranks, warm_up, micro_batches - warm_up, warm_up, rank),
            *(lambda step, rank=rank: rank, lambda step, rank=rank: rank),
            num_1f1b_microbatches=rank,
            enable_zero_bubble=True,
        )
        assert named(order) == " ".join(str(a) for a in actions if a is not None)
