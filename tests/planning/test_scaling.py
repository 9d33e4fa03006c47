"""The step time of data parallelism, against timelines worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from d2lpar import machines
from d2lpar.parallelism.scaling import NO_OVERHEAD, DeviceStep, Gradient, Overhead, buckets, step_s

# Backward ends after 10 s, the update takes 1 s; gradients come at 4, 6, 8 and 10 s.
STEP = DeviceStep(10.0, 11.0, tuple(Gradient(100, at) for at in (4.0, 6.0, 8.0, 10.0)))


def test_gradients_are_gathered_in_the_order_in_which_they_come():
    shuffled = STEP.gradients[::-1]
    assert buckets(shuffled, 200) == [Gradient(200, 6.0, 2), Gradient(200, 10.0, 2)]
    assert buckets(shuffled, 150) == buckets(shuffled, 200)
    assert buckets(shuffled, 300) == [Gradient(300, 8.0, 3), Gradient(100, 10.0)]
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
    half = replace(STEP, backward_queued_s=8.0, queued_s=9.0).scaled_to(5.5)
    assert (half.backward_end_s, half.end_s) == (5.0, 5.5)
    assert (half.backward_queued_s, half.queued_s) == (4.0, 4.5)
    assert [g.ready_s for g in half.gradients] == [2.0, 3.0, 4.0, 5.0]
    assert half.gradient_bytes == STEP.gradient_bytes


# --- what DistributedDataParallel queues ----------------------------------------------------------

# On the device a kernel takes 0.5 s, and 100 bytes of a gradient 0.25 s more to read and write.
KERNELS = Overhead(kernel_s=0.5, bytes_per_s=800)


def hundredth_s(nbytes):
    """A second for 100 bytes."""
    return nbytes / 100


def test_kernels_that_fill_buckets_delay_backward():
    # Ready at 4.75, 7.5, 10.25 and 13 s: the last is summed until 14 s, and there is the update.
    assert step_s(STEP, hundredth_s, bucket_bytes=100, overhead=KERNELS) == pytest.approx(15.0)
    # In two buckets: from 7.5 to 9.5 s, and from 13 to 15 s.
    assert step_s(STEP, hundredth_s, bucket_bytes=200, overhead=KERNELS) == pytest.approx(16.0)
    assert step_s(STEP, lambda nbytes: 0.0, overhead=KERNELS) == pytest.approx(11 + 4 * 0.75)


def test_averages_are_copied_back_while_later_ones_are_exchanged():
    back = replace(KERNELS, copies_back=True)
    # Three are copied from 13 to 15.25 s, while the last is summed until 14 s: then its turn.
    assert step_s(STEP, hundredth_s, bucket_bytes=100, overhead=back) == pytest.approx(17.0)
    # One bucket of all is summed from 13 to 17 s; nothing can be copied before.
    assert step_s(STEP, hundredth_s, bucket_bytes=400, overhead=back) == pytest.approx(17 + 3 + 1)


def test_a_host_with_a_lead_queues_unseen():
    host = Overhead(dispatch_s=2.0)
    assert step_s(STEP, hundredth_s, bucket_bytes=100, overhead=host) == pytest.approx(12.0)
    # It has 7 s until backward ends, and takes 8 more: the last bucket is summed 1 s later.
    busy = replace(STEP, backward_queued_s=3.0)
    assert step_s(busy, hundredth_s, bucket_bytes=100, overhead=host) == pytest.approx(13.0)
    # Without a lead each kernel is as late as it is queued: the last after 18 s.
    bound = replace(STEP, backward_queued_s=10.0)
    assert step_s(bound, hundredth_s, bucket_bytes=100, overhead=host) == pytest.approx(20.0)
    # Copying back takes it until 26 s.
    back = replace(host, copies_back=True)
    assert step_s(bound, hundredth_s, bucket_bytes=100, overhead=back) == pytest.approx(27.0)
    # A lead that is lost in the update delays the end of that.
    late = replace(STEP, queued_s=11.0)
    assert step_s(late, hundredth_s, bucket_bytes=100, overhead=host) == pytest.approx(11 + 8)


def test_computing_beside_an_exchange_has_what_that_leaves():
    """A bucket at 1 s takes 2 s and half of the device: 1 s is computed in them, and 1 s after."""
    step = DeviceStep(3.0, 3.5, (Gradient(4, 1.0),))
    assert step_s(step, lambda _: 2.0) == pytest.approx(3.5)
    assert step_s(step, lambda _: 2.0, overhead=Overhead(taken=0.5)) == pytest.approx(4.5)


def test_the_slowest_device_sets_the_pace():
    step = DeviceStep(3.0, 3.5, (Gradient(4, 1.0),))
    assert step.of_slowest(8, NO_OVERHEAD) is step
    assert step.of_slowest(1, Overhead(spread=0.1)).end_s == 3.5
    slowest = step.of_slowest(8, Overhead(spread=0.1))
    assert slowest.end_s == pytest.approx(3.5 * (1 + 0.1 * 1.434), rel=1e-3)  # Blom (1958)
    assert slowest.gradients[0].ready_s == pytest.approx(slowest.end_s / 3.5)


def test_micro_steps_queue_gradients_once():
    bound = replace(STEP, backward_queued_s=10.0, queued_s=11.0)
    host = Overhead(dispatch_s=2.0)
    (one_s, ten_s) = (step_s(bound.accumulated(k), lambda b: 0, overhead=host) for k in (1, 10))
    assert (one_s, ten_s) == pytest.approx((11 + 8, 9 * 10 + 11 + 8))


def test_buffers_are_broadcast_by_data_type_before_forward():
    # Ten floats and five counts: 15 kernels and 45 views, and two kernels for each type.
    buffers = Overhead(dispatch_s=0.01, view_s=0.001, buffers=(10, 5))
    assert buffers.before_s == pytest.approx(19 * 0.01 + 45 * 0.001)
    assert step_s(STEP, lambda nbytes: 0.0, overhead=buffers) == pytest.approx(11.235)


def test_the_overhead_of_a_net_follows_from_machine_and_options():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    machine = machines.machine("8x-v100-pcie")
    found = Overhead.of(machine, net)
    assert sorted(found.buffers) == [2, 4]  # counts of batches; means and variances
    assert found.copies_back
    assert (found.dispatch_s, found.view_s) == (machine.host.dispatch_s, machine.host.view_s)
    # Streaming kernels reach a share of the peak, 900 GB/s; half of that is reading.
    assert 350e9 < 1e12 / (found.kernels_s(1, 1e12) - found.kernel_s) < 450e9
    lean = Overhead.of(machine, net, gradient_as_bucket_view=True, broadcast_buffers=False)
    assert lean == replace(found, buffers=(), copies_back=False)
    assert lean.before_s == NO_OVERHEAD.before_s == 0.0
    gpu = replace(machine.accelerators[0], measured=True)
    measured = Overhead.of(replace(machine, accelerators=(gpu,)), net)
    assert measured.bytes_per_s == gpu.memory_bytes_per_s
