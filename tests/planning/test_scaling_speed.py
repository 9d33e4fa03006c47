"""Weak and strong scaling, against values by hand and properties that always hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import d2lpar as par
from d2lpar import machines, scaling
from d2lpar.parallelism.scaling import (
    DeviceStep,
    Gradient,
    Network,
    Overhead,
    Profile,
    strong,
    weak,
)


def step_of(batch: float) -> DeviceStep:
    """Two gradients; backward takes 1 s and 1 s a sample, the update 0.5 s."""
    backward_s = 1 + batch
    return DeviceStep(
        backward_s, backward_s + 0.5, (Gradient(60, backward_s / 2), Gradient(40, backward_s))
    )


PROFILE = Profile.of({batch: step_of(batch) for batch in (1, 3, 11)})


def free(nbytes: float, devices: int) -> float:
    return 0.0


def linear(nbytes: float, devices: int) -> float:
    """A second for ten bytes, between however many devices."""
    return nbytes / 10 if devices > 1 else 0.0


# --- profiles -------------------------------------------------------------------------------------


def test_a_batch_in_between_is_interpolated():
    found = PROFILE.at(7)
    assert found.end_s == pytest.approx(step_of(7).end_s)
    assert [g.ready_s for g in found.gradients] == pytest.approx([4, 8])
    assert PROFILE.at(3) == step_of(3)
    assert PROFILE.gradient_bytes == 100


def test_a_batch_above_the_largest_is_done_in_micro_steps():
    assert PROFILE.micro_steps(22) == 2
    found = PROFILE.at(22)
    assert (found.backward_end_s, found.end_s) == (24.0, 24.5)
    assert [g.ready_s for g in found.gradients] == [18.0, 24.0]
    assert PROFILE.at(12).end_s == pytest.approx(2 * 7 + 0.5)


def test_what_a_profile_cannot_know_is_said():
    with pytest.raises(ValueError, match=r"the smallest batch of this profile is 1: what 0\.5"):
        PROFILE.at(0.5)
    with pytest.raises(ValueError, match=r"needs steps of batches from 1 on, not \[\]"):
        Profile.of({})
    with pytest.raises(ValueError, match=r"not \[0, 1\]"):
        Profile.of({0: step_of(1), 1: step_of(1)})
    other = DeviceStep(1.0, 1.0, (Gradient(40, 1.0), Gradient(60, 1.0)))
    with pytest.raises(ValueError, match=r"batches \[1, 2\] have gradients of different bytes"):
        Profile.of({1: step_of(1), 2: other})


def test_buckets_are_those_of_the_largest_batch():
    late_first = DeviceStep(2.0, 2.0, (Gradient(60, 2.0), Gradient(40, 1.0)))
    profile = Profile.of({1: late_first, 2: step_of(2)}).bucketed(50)
    assert profile.steps[0].gradients == (Gradient(60, 2.0), Gradient(40, 1.0))
    # As one bucket it is ready when both are.
    one = Profile.of({1: late_first, 2: step_of(2)}).bucketed(scaling.ONE_BUCKET)
    assert [step.gradients for step in one.steps] == [
        (Gradient(100, 2.0, 2),),
        (Gradient(100, 3.0, 2),),
    ]


def test_accumulating_repeats_all_but_the_update():
    assert step_of(3).accumulated(1) == step_of(3)
    assert step_of(3).accumulated(5).end_s == 5 * 4 + 0.5
    with pytest.raises(
        ValueError,
        match=r"times of DeviceStep\.accumulated must be .*, not 0",
    ):
        step_of(3).accumulated(0)


# --- by hand --------------------------------------------------------------------------------------


def test_weak_scaling_by_hand():
    one, four = weak(PROFILE, linear, batch=3, devices=[1, 4], bucket_bytes=50)
    # 60 bytes are sent from 2 to 8 s, 40 more until 12 s, then 0.5 s: 4.5 s of it computing.
    assert four.step_s == pytest.approx(12.5)
    assert four.step_s - four.compute_s == pytest.approx(8.0)
    assert (four.compute_s, four.exchange_s) == (4.5, 10.0)
    assert four.serial_s == 14.5
    assert four.efficiency == pytest.approx(4.5 / 12.5)
    assert four.speedup == pytest.approx(4 * 4.5 / 12.5)
    assert (four.samples, four.samples_per_s) == (12, 12 / 12.5)
    assert one.efficiency == 1.0


def test_accumulating_hides_the_exchange():
    (one,) = weak(PROFILE, linear, batch=3, devices=[2], bucket_bytes=50)
    (ten,) = weak(PROFILE, linear, batch=3, devices=[2], bucket_bytes=50, accumulate=10)
    assert (ten.compute_s, ten.batch) == (40.5, 30)
    assert ten.step_s == pytest.approx(9 * 4 + 12.5)  # the same ten seconds of exchange, once
    assert ten.efficiency == pytest.approx(40.5 / 48.5)
    assert one.efficiency == pytest.approx(4.5 / 12.5)


def test_an_overhead_makes_many_devices_and_one_slower():
    # Filling takes 1 s each: buckets are ready at 3 and 6 s, and summed from 3 to 9 and to 13 s.
    host = Overhead(kernel_s=1.0, dispatch_s=0.25, buffers=(6,))
    one, four = weak(PROFILE, linear, batch=3, devices=[1, 4], bucket_bytes=50, overhead=host)
    assert host.before_s == 2.0
    assert four.step_s == pytest.approx(2 + 13 + 0.5)
    assert (one.step_s, one.compute_s, four.compute_s) == (8.5, 8.5, 8.5)
    assert four.efficiency == pytest.approx(4.5 / 15.5)
    assert one.efficiency == pytest.approx(4.5 / 8.5)
    (shared,) = strong(PROFILE, linear, samples=12, devices=[4], bucket_bytes=50, overhead=host)
    assert shared.step_s == four.step_s
    # Nine steps before take 4 s each, without any of it.
    (ten,) = weak(
        PROFILE, linear, batch=3, devices=[4], bucket_bytes=50, accumulate=10, overhead=host
    )
    assert ten.step_s == pytest.approx(36 + 15.5)


def test_strong_scaling_ends_because_small_shards_do_not_fill_a_device():
    found = strong(PROFILE, free, samples=11, devices=[1, 11])
    assert [s.batch for s in found] == [11.0, 1.0]
    # 12.5 s on one device; on eleven each still has its 1.5 s of fixed costs: 2.5 s.
    assert [s.step_s for s in found] == pytest.approx([12.5, 2.5])
    assert found[1].efficiency == pytest.approx(12.5 / 11 / 2.5)
    assert found[1].speedup == pytest.approx(5.0)
    with pytest.raises(ValueError, match=r"what 0\.5 samples take is not known"):
        strong(PROFILE, free, samples=11, devices=[22])


def test_devices_of_a_curve():
    found = scaling.counts(100_000, node=8)
    assert found[0] == 1
    assert found[-1] == 100_000
    assert all(n <= 8 or n % 8 == 0 for n in found)
    assert found == sorted(set(found))
    assert scaling.counts(1) == [1]
    for wrong in ({"most": 0}, {"most": 9, "node": 0}):
        with pytest.raises(ValueError, match=r"(most|node) of counts must"):
            scaling.counts(**wrong)


# --- always ---------------------------------------------------------------------------------------

TIMES = st.floats(1e-6, 1e3)
STEPS = st.builds(
    lambda sizes, shares, end, update: DeviceStep(
        end, end + update, tuple(Gradient(n, end * s) for n, s in zip(sizes, shares, strict=False))
    ),
    st.lists(st.integers(1, 10**8), min_size=1, max_size=8),
    st.lists(st.floats(0.01, 1), min_size=8, max_size=8),
    TIMES,
    TIMES,
)
NETWORK = Network.of(machines.machine("8x-p100-dgx1"), machines.NETWORKS["25gbe"])
EXCHANGES = {name: method(NETWORK) for name, method in scaling.METHODS.items()}


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
@given(step=STEPS, devices=st.integers(1, 100_000), bucket_bytes=st.floats(1, 1e9))
def test_steps_are_between_computing_alone_and_all_in_a_row(exchange, step, devices, bucket_bytes):
    profile = Profile.of({4: step})
    one, many = weak(profile, exchange, batch=4, devices=[1, devices], bucket_bytes=bucket_bytes)
    assert (one.efficiency, one.step_s) == (1.0, step.end_s)
    assert 0 < many.efficiency <= 1
    sent_s = sum(exchange(b.bytes, devices) for b in scaling.buckets(step.gradients, bucket_bytes))
    assert step.end_s <= many.step_s <= (step.end_s + sent_s) * (1 + 1e-9)


@given(step=STEPS, bucket_bytes=st.floats(1, 1e9))
def test_without_latency_overlapped_is_between_the_rule_and_serial(step, bucket_bytes):
    (found,) = weak(Profile.of({1: step}), linear, batch=1, devices=[2], bucket_bytes=bucket_bytes)
    assert max(found.compute_s, found.exchange_s) <= found.step_s * (1 + 1e-9)
    assert found.step_s <= found.serial_s * (1 + 1e-9)


@given(step=STEPS, devices=st.integers(1, 100_000), accumulate=st.integers(1, 9))
@example(DeviceStep(43.13537359675451, 555.7845384013355, (Gradient(1, 43.13537359675451),)), 1, 6)
def test_without_an_exchange_weak_scaling_is_perfect(step, devices, accumulate):
    (found,) = weak(Profile.of({1: step}), free, batch=1, devices=[devices], accumulate=accumulate)
    assert found.efficiency == 1.0
    assert found.step_s == found.compute_s


@given(step=STEPS, devices=st.sampled_from([2, 8, 512, 100_000]))
def test_a_step_is_that_of_step_s(step, devices):
    exchange = EXCHANGES["library"]
    (found,) = weak(Profile.of({1: step}), exchange, batch=1, devices=[devices])
    expected_s = scaling.step_s(step, lambda nbytes: exchange(nbytes, devices))
    assert found.step_s == pytest.approx(expected_s, rel=1e-12)


# --- steps of programs ----------------------------------------------------------------------------


def program(device: torch.device, batch: int):
    """A training step of a small perceptron, its net and its optimizer."""
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    X = torch.ones(batch, 64, device=device)

    def step() -> None:
        net(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, net, optimizer


def test_a_simulated_step_is_as_long_as_the_program():
    with par.simulate("1x-v100-textbook") as (gpu,):
        step, net, optimizer = program(gpu, 512)
        found = scaling.timed_step(step, net, optimizer)
        again = scaling.timed_step(step, net, optimizer)
        simulated_s = par.measure(step, devices=gpu, repeats=1).median_s
    assert [g.bytes for g in found.gradients] == [4 * 64 * 256, 4 * 256, 4 * 256 * 8, 4 * 8]
    ready = [g.ready_s for g in found.gradients]
    assert max(ready[2:]) < min(ready[:2])  # the last layer's come first
    assert 0 < max(ready) <= found.backward_end_s < found.end_s
    assert found.end_s == pytest.approx(again.end_s)
    assert found.end_s == pytest.approx(simulated_s, rel=0.05)
    assert 0 < found.backward_queued_s < found.queued_s <= found.end_s


def test_how_far_the_host_is_ahead_is_seen():
    with par.simulate("1x-v100-textbook") as (gpu,):
        small, large = (scaling.timed_step(*program(gpu, b)) for b in (8, 2**20))
    # A small batch takes the time of queueing it; a large one's kernels take longer.
    assert small.backward_queued_s > 0.9 * small.backward_end_s
    assert large.backward_queued_s < 0.2 * large.backward_end_s


def test_small_batches_do_not_fill_a_simulated_gpu():
    with par.simulate("1x-v100-textbook") as (gpu,):
        profile = Profile.of({b: scaling.timed_step(*program(gpu, b)) for b in (1, 4096)})
    found = strong(profile, free, samples=4096, devices=[1, 4096])
    assert found[0].efficiency == 1.0
    assert found[1].efficiency < 0.1


def test_a_measured_step_on_this_machine():
    found = scaling.timed_step(*program(torch.device("cpu"), 8), repeats=3)
    assert len(found.gradients) == 4
    assert all(0 < g.ready_s <= found.backward_end_s for g in found.gradients)
    assert found.backward_end_s < found.end_s


def test_hooks_are_taken_away_again():
    step, net, optimizer = program(torch.device("cpu"), 8)
    scaling.timed_step(step, net, optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in net.parameters())


def test_a_step_without_an_update_is_refused():
    _, net, optimizer = program(torch.device("cpu"), 8)
    with pytest.raises(ValueError, match=r"the step never called optimizer.step\(\)"):
        scaling.timed_step(lambda: net(torch.ones(8, 64)).sum().backward(), net, optimizer)
