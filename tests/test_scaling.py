"""The step time of data parallelism, against timelines worked out by hand."""

from __future__ import annotations

import pytest

from d2lpar.scaling import Gradient, Step, buckets, step_s

# Backward ends after 10 s, the update takes 1 s; gradients come at 4, 6, 8 and 10 s.
STEP = Step(10.0, 11.0, tuple(Gradient(100, at) for at in (4.0, 6.0, 8.0, 10.0)))


def test_gradients_are_gathered_in_the_order_in_which_they_come():
    shuffled = STEP.gradients[::-1]
    assert buckets(shuffled, 200) == [Gradient(200, 6.0), Gradient(200, 10.0)]
    assert buckets(shuffled, 150) == buckets(shuffled, 200)
    assert buckets(shuffled, 300) == [Gradient(300, 8.0), Gradient(100, 10.0)]
    assert buckets([], 300) == []
    with pytest.raises(ValueError, match="more than zero bytes, not 0"):
        buckets(shuffled, 0)


def test_what_is_hidden_behind_backward_costs_nothing_but_the_last_bucket():
    # Each exchange of 100 bytes takes 1 s: the last begins at 10 s and ends at 11 s.
    assert step_s(STEP, lambda nbytes: nbytes / 100, bucket_bytes=100) == pytest.approx(12.0)
    # As one bucket all 400 bytes are sent when backward has ended.
    assert step_s(STEP, lambda nbytes: nbytes / 100, bucket_bytes=400) == pytest.approx(15.0)


def test_exchanges_wait_for_one_another():
    # 3 s each from 4 s on, without a pause: 16 s, and 1 s for the update.
    assert step_s(STEP, lambda nbytes: nbytes * 3 / 100, bucket_bytes=100) == pytest.approx(17.0)


def test_one_device_exchanges_nothing():
    assert step_s(STEP, lambda nbytes: 0.0) == STEP.end_s
    assert STEP.gradient_bytes == 400


def test_a_step_scaled_to_another_device_keeps_its_proportions():
    half = STEP.scaled_to(5.5)
    assert (half.backward_end_s, half.end_s) == (5.0, 5.5)
    assert [g.ready_s for g in half.gradients] == [2.0, 3.0, 4.0, 5.0]
    assert half.gradient_bytes == STEP.gradient_bytes
