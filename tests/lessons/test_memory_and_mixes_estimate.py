"""The estimate of a mix that lesson 09 writes in its cells, beside the planner's."""

from itertools import combinations

import cells
import pytest
import torch
import torch.distributed as dist

import d2lpar
from d2lpar import planner

MACHINE, BATCH, ROOM_BYTES = "8x-a100-nvswitch", 64, 36e9
A_TIE = 0.05  # far below what either of the two may be wrong by
NET = planner.model("megatron-7.5b")
GIVEN = {
    "torch": torch,
    "dist": dist,
    "par": d2lpar,
    "FLOPS_PER_S": 312e12 / 2,
    "X_BYTES": 2 * NET.sequence * NET.hidden,
}


@pytest.fixture(scope="module")
def compared():
    """(bytes by hand, seconds by hand, plan) of each mix, the planner's fastest first."""
    lesson = cells.functions("09", **GIVEN)
    with d2lpar.simulate(MACHINE) as gpus:
        seconds = d2lpar.run_ranks(lesson.sum_s, gpus)[0]
    rate = 2 * 7 / 8 * GIVEN["X_BYTES"] / seconds
    lesson = cells.functions("09", LINK_BYTES_PER_S=rate, **GIVEN)
    settings = {"micro_batch": 1, "chunks": 1, "recompute": "full", "overlap": False}
    plans = planner.plans(NET, MACHINE, batch=BATCH, **settings)
    return [(*lesson.estimate(NET, *plan.mesh.sizes, batch=BATCH), plan) for plan in plans]


def test_both_say_the_same_of_what_fits(compared):
    assert [held < ROOM_BYTES for held, _, _ in compared] == [plan.fits for *_, plan in compared]


def test_both_rank_the_mixes_alike_but_for_ties(compared):
    fitting = [(by_hand_s, plan.step_s) for _, by_hand_s, plan in compared if plan.fits]
    assert len(fitting) > 4
    for faster, slower in combinations(fitting, 2):
        if faster[0] > slower[0]:  # by hand it is the other way round
            assert faster[0] < slower[0] * (1 + A_TIE)
            assert slower[1] < faster[1] * (1 + A_TIE)


def test_both_take_about_as_long(compared):
    for _, by_hand_s, plan in compared:
        assert by_hand_s == pytest.approx(plan.step_s, rel=plan.uncertainty)
