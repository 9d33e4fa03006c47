"""Time to a target accuracy: the critical batch, its fit, and the best batch and devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lpar.parallelism.scaling import (
    Convergence,
    DeviceStep,
    Gradient,
    Overhead,
    Profile,
    fit_convergence,
    runs,
)

CURVE = Convergence(1000, 512)
BATCHES = (32, 64, 128, 512, 2048, 8192)


def test_at_the_critical_batch_steps_and_samples_are_twice_the_least():
    assert CURVE.steps(512) == 2000
    assert CURVE.examples(512) == 2 * 1000 * 512
    assert CURVE.examples(1) == pytest.approx(1000 * 512 * (1 + 1 / 512))
    assert CURVE.steps(10**12) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("steps", "batch"), [(0, 1), (1, -1), (float("inf"), 1), (1, float("nan"))]
)
def test_a_convergence_has_numbers_above_zero(steps, batch):
    with pytest.raises(ValueError, match="must be numbers above zero"):
        Convergence(steps, batch)


@given(floor=st.floats(1, 1e6), critical=st.floats(8, 1e5))
def test_points_of_a_curve_give_the_curve(floor, critical):
    curve = Convergence(floor, critical)
    found = fit_convergence({batch: curve.steps(batch) for batch in BATCHES})
    assert found.min_steps == pytest.approx(floor, rel=1e-4)
    assert found.critical_batch == pytest.approx(critical, rel=1e-4)


def test_one_run_that_went_wrong_moves_little():
    points = {batch: CURVE.steps(batch) * factor for batch, factor in NOISE.items()}
    plain = fit_convergence(points)
    wrong = fit_convergence(points | {512: 3 * points[512]})
    assert wrong.min_steps == pytest.approx(plain.min_steps, rel=0.1)
    assert wrong.critical_batch == pytest.approx(plain.critical_batch, rel=0.1)


NOISE = dict(zip(BATCHES, (1.02, 0.99, 0.98, 1.01, 1.02, 0.98), strict=True))


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ({32: 100, 64: 60}, "three batches show how well; there are 2"),
        ({32: 100, 64: 60, 128: -1}, r"above zero, not \{128: -1\}"),
        ({0: 100, 64: 60, 128: 50}, r"above zero, not \{0: 100\}"),
        ({32: float("nan"), 64: 60, 128: 50}, "must be finite numbers"),
        ({32: 1000, 64: 480, 128: 220, 256: 100}, "no floor is seen; measure larger batches"),
        ({32: 100, 64: 110, 128: 130}, "do not fall as the batch grows; measure smaller"),
    ],
)
def test_points_that_show_nothing_are_refused(points, says):
    with pytest.raises(ValueError, match=says):
        fit_convergence(points)


# --- batch and devices ----------------------------------------------------------------------------


def step_of(batch: int) -> DeviceStep:
    return DeviceStep(1.0 + batch, 1.0 + batch, (Gradient(10, 1.0 + batch),))


PROFILE = Profile.of({batch: step_of(batch) for batch in (1, 1024)})


def slow(nbytes: float, devices: int) -> float:
    return devices / 4 if devices > 1 else 0.0


def test_a_run_by_hand():
    ((run,),) = runs(CURVE, PROFILE, slow, batches=[16], devices=[8])
    assert run.step_s == pytest.approx(1 + 16 + 2)
    assert run.steps == pytest.approx(1000 * (1 + 512 / 128))
    assert run.seconds == pytest.approx(19 * 5000)
    kernel = Overhead(kernel_s=0.5)
    ((slower,),) = runs(CURVE, PROFILE, slow, batches=[16], devices=[8], overhead=kernel)
    assert slower.step_s == pytest.approx(19.5)


def test_the_optimum_is_inside_and_costs_more_than_one_device():
    batches, devices = [1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64, 128]
    table = runs(CURVE, PROFILE, slow, batches=batches, devices=devices)
    assert [len(row) for row in table] == [7] * 8
    everywhere = [run for row in table for run in row]
    best = min(everywhere, key=lambda run: run.seconds)
    assert 1 < best.devices < 128  # more make the exchange longer, and waste samples
    assert 1 < best.batch < 64
    cheapest = min(everywhere, key=lambda run: run.seconds * run.devices)
    assert cheapest.devices < best.devices


def test_if_every_sample_counted_more_devices_would_always_be_faster():
    endless = Convergence(1e-6, 1e12)
    (row,) = zip(
        *runs(endless, PROFILE, lambda b, n: 0.0, batches=[64], devices=[1, 10, 1000]),
        strict=True,
    )
    assert [run.seconds * run.devices for run in row] == pytest.approx([row[0].seconds] * 3)
