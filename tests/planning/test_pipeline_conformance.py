"""What the checker of schedules finds: broken ones of all kinds, torch's own among them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar.parallelism.pipeline import (
    SCHEDULES,
    Operation,
    ScheduleError,
    check,
    gpipe,
    in_flight,
    interleaved_1f1b,
    one_f_one_b,
    orders,
    require,
    zero_bubble_h1,
)


def order(text: str) -> list[Operation]:
    """Operations from their names, in which stages and micro-batches have one digit."""
    return [Operation(name[1], int(name[0]), int(name[2])) for name in text.split()]


def found(*of_ranks: str, micro_batches: int, stages: int | None = None, **options) -> list[str]:
    return texts(list(map(order, of_ranks)), stages or len(of_ranks), micro_batches, **options)


def texts(of_ranks, stages: int, micro_batches: int, **options) -> list[str]:
    return [*map(str, check(of_ranks, stages=stages, micro_batches=micro_batches, **options))]


# --- passes ---------------------------------------------------------------------------------------


def test_a_sound_schedule_has_no_findings():
    assert found("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", micro_batches=2) == []
    assert found("0F0 0I0 0W0", "1F0 1I0 1W0", micro_batches=1) == []
    assert found("0F0 0B0", "1F0 1I0 1W0", micro_batches=1) == []  # each stage as it likes
    require(orders(one_f_one_b(2, 4)), stages=2, micro_batches=4)


def test_missing_passes():
    assert found("0F0 0B0", "1F0", micro_batches=1) == [
        "rank 1: 1B0 is missing: neither it nor 1I0 and 1W0 are there"
    ]
    assert found("0F0 0I0", "1F0 1W0", micro_batches=1) == [
        "rank 0: 0W0 is missing: 0I0 is there",
        "rank 1: 1I0 is missing: 1W0 is there",
    ]
    assert found("0B0", micro_batches=1) == ["rank 0: 0F0 is missing"]
    assert found("", micro_batches=1)[0] == "rank 0: 0F0 is missing"
    assert texts([], 1, 1)[0] == "rank 0: 0F0 is missing"


def test_passes_that_come_again():
    assert found("0F0 0F0 0B0", micro_batches=1) == [
        "rank 0, position 1: 0F0 was done before: rank 0, position 0"
    ]
    assert found("0F0 0B0 0W0", micro_batches=1) == [
        "rank 0, position 2: 0W0 is a part of 0B0, which is there, too"
    ]


def test_passes_that_nobody_asked_for():
    assert found("0F0 0X0 0B0", micro_batches=1) == [
        "rank 0, position 1: 0X0 is of no kind: these are F, B, I, W"
    ]
    assert found("0F0 0B0 1F0", micro_batches=1) == [
        "rank 0, position 2: 1F0 is of no stage: they are 0 to 0"
    ]


def test_stages_belong_to_ranks():
    sound = "0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"  # a V: there and back
    assert found(*sound, micro_batches=1, stages=4, owners=[0, 1, 1, 0]) == []
    assert found(*sound, micro_batches=1, stages=4)[0] == (
        "rank 0, position 1: 3F0 belongs on rank 1, which owns stage 3"
    )


def test_early_passes_of_a_stage():
    assert found("0B0 0F0", micro_batches=1) == [
        "rank 0, position 0: 0B0 needs 0F0, which comes at position 1"
    ]
    assert found("0F0 0W0 0I0", micro_batches=1) == [
        "rank 0, position 1: 0W0 needs 0I0, which comes at position 2"
    ]


# --- torch's picture of 1F1B ----------------------------------------------------------------------

# What torch 2.13's `_schedule_visualizer.get_schedule_ops("1F1B", 3, 4)` gives.
OF_TORCH = (
    "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
    "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
    "2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3",
)
ITS_FAULTS = [
    "rank 2, position 6: 2F4 is of no micro-batch: they are 0 to 3",
    "rank 2: 2F0 is missing",
]


def test_the_last_rank_of_torchs_picture_is_rejected():
    assert found(*OF_TORCH, micro_batches=4) == ITS_FAULTS


def test_torchs_picture_as_it_is_today():
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    drawn = [
        " ".join(str(a) for a in actions if a is not None and "REDUCE_GRAD" not in str(a))
        for actions in visualizer.get_schedule_ops("1F1B", 3, 4)
    ]
    # Either the fault is still there, or it was mended and is the schedule that we have.
    assert found(*drawn, micro_batches=4) in (ITS_FAULTS, [])
    if not found(*drawn, micro_batches=4):
        assert list(map(order, drawn)) == orders(one_f_one_b(3, 4))


# --- waiting --------------------------------------------------------------------------------------


def test_ranks_that_wait_for_one_another():
    # Rank 0 wants the gradient of micro-batch 0 before it sends 1, rank 1 goes back with 1 first.
    assert found("0F0 0B0 0F1 0B1", "1F0 1F1 1B1 1B0", micro_batches=2) == [
        "rank 0, position 1: 0B0 needs 1B0 of rank 1, which itself waits before that, "
        "at position 1, to do 1F1",
        "rank 1, position 1: 1F1 needs 0F1 of rank 0, which itself waits before that, "
        "at position 1, to do 0B0",
    ]


def test_a_rank_that_waits_for_itself():
    assert found("1F0 0F0 1B0 0B0", micro_batches=1, stages=2) == [
        "rank 0, position 0: 1F0 needs 0F0, which comes at position 1"
    ]


def test_blocking_sends():
    plain = {"stages": 2, "micro_batches": 3, "receives_ahead": 0}
    assert check(orders(gpipe(2, 3)), **plain) == []
    assert [*map(str, check(orders(one_f_one_b(2, 3)), **plain))] == [
        "rank 0, position 1: 0F1 waits for ever with blocking sends: rank 0 sends 0F1 to rank 1, "
        "while rank 1 sends 1B0 to rank 0",
        "rank 1, position 1: 1B0 waits for ever with blocking sends: rank 1 sends 1B0 to rank 0, "
        "while rank 0 sends 0F1 to rank 1",
    ]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (8, 16)])
def test_how_far_ahead_a_rank_must_receive(ranks, micro_batches):
    def least(schedule, stages) -> int:
        sound = (
            ahead
            for ahead in range(9)
            if not check(
                orders(schedule(ranks, micro_batches)),
                stages=stages,
                micro_batches=micro_batches,
                receives_ahead=ahead,
            )
        )
        return next(sound)

    assert least(gpipe, ranks) == 0
    assert least(one_f_one_b, ranks) == 1
    assert least(zero_bubble_h1, ranks) == 1
    assert least(interleaved_1f1b, 2 * ranks) == 2


def test_sends_out_of_order_block_but_arrive():
    swapped = "0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1"
    assert found(*swapped, micro_batches=2, receives_ahead=None) == []
    assert found(*swapped, micro_batches=2)[0] == (
        "rank 0, position 0: 0F1 waits for ever with blocking sends: rank 0 sends 0F1 to rank 1, "
        "while rank 1 receives 0F0 from rank 0"
    )


# --- memory ---------------------------------------------------------------------------------------


def test_micro_batches_in_flight():
    assert in_flight(orders(gpipe(3, 5))) == [5, 5, 5]
    assert in_flight(orders(one_f_one_b(3, 5))) == [3, 2, 1]
    assert in_flight(orders(zero_bubble_h1(3, 5))) == [3, 3, 3]
    assert in_flight([[]]) == [0]


def test_too_many_in_flight():
    all_forwards = orders(gpipe(2, 4))
    assert texts(all_forwards, 2, 4, most_in_flight=[4, 3]) == [
        "rank 1, position 3: 1F3 is micro-batch number 4 in flight, and 3 may be: "
        "a backward pass must come first"
    ]
    assert len(texts(all_forwards, 2, 4, most_in_flight=3)) == 2
    assert texts(all_forwards, 2, 4, most_in_flight=4) == []


# --- errors and mutations -------------------------------------------------------------------------


def test_the_error_has_all_findings():
    with pytest.raises(ScheduleError, match="2F4 is of no micro-batch") as caught:
        require(list(map(order, OF_TORCH)), stages=3, micro_batches=4)
    assert [*map(str, caught.value.findings)] == ITS_FAULTS
    assert str(caught.value) == "\n".join(ITS_FAULTS)
    assert isinstance(caught.value, ValueError)


@st.composite
def schedules(draw):
    """A schedule's name, its orders, stages and micro-batches; and a rank and a place in it."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    ranks = draw(st.integers(1, 4))
    micro_batches = ranks * draw(st.integers(1, 2))
    of_ranks = orders(SCHEDULES[name](ranks, micro_batches))
    rank = draw(st.integers(0, ranks - 1))
    place = draw(st.integers(0, len(of_ranks[rank]) - 1))
    stages = ranks * (2 if name == "interleaved" else 1)
    return of_ranks, stages, micro_batches, rank, place


@settings(max_examples=60)
@given(schedules())
def test_a_dropped_operation_is_named(case):
    of_ranks, stages, micro_batches, rank, place = case
    dropped = of_ranks[rank].pop(place)
    assert any(str(dropped) in text for text in texts(of_ranks, stages, micro_batches))


@settings(max_examples=60)
@given(schedules(), st.data())
def test_a_doubled_operation_is_named(case, data):
    of_ranks, stages, micro_batches, rank, place = case
    doubled = of_ranks[rank][place]
    of_ranks[rank].insert(data.draw(st.integers(0, len(of_ranks[rank]))), doubled)
    named = [text for text in texts(of_ranks, stages, micro_batches) if "done before" in text]
    assert len(named) == 1
    assert str(doubled) in named[0]


@settings(max_examples=60)
@given(schedules())
def test_a_pass_that_is_swapped_with_what_it_needs_is_named(case):
    of_ranks, stages, micro_batches, rank, place = case
    of_rank = of_ranks[rank]
    forward = of_rank.index(of_rank[place]._replace(kind="F"))
    back = next(
        i for i, op in enumerate(of_rank) if op.kind in "BI" and op[1:] == of_rank[place][1:]
    )
    of_rank[forward], of_rank[back] = of_rank[back], of_rank[forward]
    text = texts(of_ranks, stages, micro_batches)[0]
    assert f"{of_rank[forward]} needs {of_rank[back]}" in text


@settings(max_examples=60)
@given(schedules())
def test_a_pass_on_the_wrong_rank_is_named(case):
    of_ranks, stages, micro_batches, rank, place = case
    if len(of_ranks) > 1:
        moved = of_ranks[rank].pop(place)
        of_ranks[rank - 1].append(moved)
        assert f"{moved} belongs on rank {rank}" in texts(of_ranks, stages, micro_batches)[0]
