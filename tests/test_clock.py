"""The simulated clock: small timelines worked out by hand, and its calendar against brute force."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import d2lpar as par
from d2lpar import machines
from d2lpar.machines import Accelerator, Host, Link, Machine
from d2lpar.timeline import Span, Timeline
from d2lpar.timing import now_s
from d2lpar.vgpu.clock import Clock, Resource
from d2lpar.vgpu.cost import MATMUL_EFFICIENCY, MEMORY_EFFICIENCY

# Queuing takes 1 s, a view nothing; a copy to or from the host 2 s and 1 s a byte, between two
# devices 1 s and 1 s for two bytes.
GPU = Accelerator("toy", {"float32": 1.0}, 1.0, 10**9, kernel_latency_s=0.0)
MACHINE = Machine(
    "toy",
    (GPU, GPU, GPU),
    Host("toy", dispatch_s=1.0, view_s=0.0),
    Link("bus", 2.0, 1.0),
    Link("peer", 1.0, 2.0),
)
NO_PEER = replace(MACHINE, peer=None)


def new_clock(machine=MACHINE):
    clock = Clock(machine)
    clock.timelines.append(Timeline("toy"))
    return clock


def spans(clock, *kinds):
    kinds = kinds or ("compute", "copy", "host", "wait")
    return [(s.device, s.kind, s.start_s, s.end_s) for s in clock.timelines[0] if s.kind in kinds]


def kernel(clock, device, seconds, stream=0):
    return clock.kernel(clock.host, (device, stream), "kernel", seconds, 0, 0)


# --- by hand --------------------------------------------------------------------------------------


def test_kernels_of_a_stream_follow_each_other():
    clock = new_clock()
    kernel(clock, 0, 5)
    kernel(clock, 0, 2)
    assert clock.host.now_s == 2
    assert spans(clock) == [("vgpu:0", "compute", 1, 6), ("vgpu:0", "compute", 6, 8)]


def test_a_device_that_is_quicker_than_its_host_idles():
    clock = new_clock()
    for _ in range(3):
        kernel(clock, 0, 0.25)
    assert [start for _, _, start, _ in spans(clock)] == [1, 2, 3]


def test_devices_overlap():
    clock = new_clock()
    kernel(clock, 0, 5)
    kernel(clock, 1, 5)
    assert spans(clock) == [("vgpu:0", "compute", 1, 6), ("vgpu:1", "compute", 2, 7)]
    clock.wait_for_device(clock.host, 0, "wait")
    assert clock.host.now_s == 6
    clock.wait_for_device(clock.host, 1, "wait")
    assert clock.host.now_s == 7
    assert spans(clock, "wait") == [("host", "wait", 2, 6), ("host", "wait", 6, 7)]


def test_streams_of_one_device_share_its_engine():
    clock = new_clock()
    kernel(clock, 0, 5, stream=0)
    kernel(clock, 0, 5, stream=1)
    assert spans(clock) == [("vgpu:0", "compute", 1, 6), ("vgpu:0", "compute", 6, 11)]


def test_a_copy_waits_for_both_streams_and_both_wait_for_it():
    clock = new_clock()
    kernel(clock, 0, 5)  # 1 to 6
    kernel(clock, 1, 10)  # 2 to 12
    end_s = clock.copy(clock.host, (0, 0), (1, 0), 4, "copy")
    assert end_s == 12 + 1 + 4 / 2
    kernel(clock, 0, 1)
    kernel(clock, 1, 1)
    assert spans(clock)[2:] == [
        ("vgpu:0", "copy", 12, 15),
        ("vgpu:0", "compute", 15, 16),
        ("vgpu:1", "compute", 15, 16),
    ]
    assert clock.host.now_s == 5  # the host has waited for nothing


def test_copies_over_one_link_queue_and_other_links_are_free():
    clock = new_clock()
    copies = [((0, 0), (1, 0)), ((0, 1), (2, 0)), ((2, 1), (1, 1))]
    for source, target in copies:
        clock.copy(clock.host, source, target, 2, "copy")
    # 0 sends twice, one after the other; then the way into 1 is free for 2.
    assert [(start, end) for *_, start, end in spans(clock)] == [(1, 3), (3, 5), (3, 5)]


def test_links_are_full_duplex():
    clock = new_clock()
    clock.copy(clock.host, None, (0, 0), 10, "down")
    clock.copy(clock.host, (0, 1), None, 10, "up")
    clock.copy(clock.host, None, (0, 2), 10, "down again")
    times = [(start, end) for *_, start, end in spans(clock)]
    assert times == [(1, 13), (2, 14), (13, 25)]


def test_without_peer_to_peer_copies_go_through_the_host():
    clock = new_clock(NO_PEER)
    clock.copy(clock.host, (0, 0), (1, 0), 4, "copy")
    assert spans(clock) == [("vgpu:0", "copy", 1, 7), ("vgpu:0", "copy", 7, 13)]
    clock.copy(clock.host, None, (1, 1), 1, "other")  # the way down to 1 is busy from 7 on
    assert spans(clock)[-1] == ("vgpu:1", "copy", 2, 5)


def test_peers_on_the_hosts_bus_share_its_links():
    bus = MACHINE.host_link
    for peer, start_s in ((bus, 7), (MACHINE.peer, 2)):
        clock = new_clock(MACHINE.with_peer(peer))
        clock.copy(clock.host, (0, 0), (1, 0), 4, "between devices")
        clock.copy(clock.host, (0, 1), None, 4, "to the host")
        assert spans(clock)[1][2] == start_s


def test_events_order_streams():
    clock = new_clock()
    kernel(clock, 0, 5, stream=0)
    happened_s = clock.record_event(clock.host, (0, 0))
    assert happened_s == 6
    clock.stream_waits((1, 0), happened_s)
    kernel(clock, 1, 1)
    assert spans(clock)[-1] == ("vgpu:1", "compute", 6, 7)
    assert clock.record_event(clock.host, (2, 0)) == clock.host.now_s


def test_host_work_delays_what_is_queued_after_it():
    clock = new_clock()
    kernel(clock, 0, 1)
    clock.host_work(clock.host, 10, "load")
    kernel(clock, 0, 1)
    assert spans(clock) == [
        ("vgpu:0", "compute", 1, 2),
        ("host", "host", 1, 11),
        ("vgpu:0", "compute", 12, 13),
    ]


def test_every_kernel_and_copy_was_dispatched_before_it_began():
    clock = new_clock()
    kernel(clock, 0, 5)
    clock.copy(clock.host, (0, 0), None, 1, "copy")
    dispatched = [end for *_, end in spans(clock, "dispatch")]
    begun = [start for *_, start, _ in spans(clock, "compute", "copy")]
    assert dispatched == [1, 2]
    assert all(d <= b for d, b in zip(dispatched, begun, strict=True))


# --- the calendar of a resource -------------------------------------------------------------------

times = st.integers(0, 30)


@settings(deadline=None)
@given(st.lists(st.tuples(times, st.integers(0, 6)), max_size=25))
def test_the_earliest_gap_is_the_one_that_brute_force_finds(requests):
    resource, taken = Resource(), set()
    for ready, duration in requests:
        found = resource.earliest(ready, duration)
        expected = next(
            start
            for start in itertools.count(ready)
            if taken.isdisjoint(range(start, start + duration))
        )
        if duration:
            assert found == expected
        assert found >= ready
        resource.occupy(found, found + duration)
        taken |= set(range(found, found + duration))


def test_a_long_calendar_stays_short_and_never_double_books(monkeypatch):
    monkeypatch.setattr("d2lpar.vgpu.clock.KEPT_INTERVALS", 8)
    resource, booked = Resource(), []
    for i in range(100):
        start = resource.earliest(i * 10, 2)
        resource.occupy(start, start + 2)
        booked.append(start)
    assert len(resource._starts) <= 8
    assert booked == [i * 10 for i in range(100)]
    assert resource.earliest(0, 5) > 800  # the oldest gaps are forgotten, not given away
    assert resource.earliest(980, 5) == 982


# --- operations on virtual devices ----------------------------------------------------------------


@pytest.fixture
def toy(gpus):
    with par.simulate(MACHINE, with_values=True) as devices:
        yield devices


def test_a_product_lasts_as_long_as_the_roofline_says(toy):
    a = torch.ones(4, 8, device=toy[0])
    b = torch.ones(8, 2, device=toy[0])
    with par.record() as timeline:
        a @ b
    (product,) = timeline.on(toy[0], "compute")
    flops, nbytes = 2 * 4 * 8 * 2, 4 * (4 * 8 + 8 * 2 + 4 * 2)
    assert (product.name, product.flops, product.bytes) == ("mm", flops, nbytes)
    expected_s = max(flops / MATMUL_EFFICIENCY, nbytes / MEMORY_EFFICIENCY)
    assert product.duration_s == pytest.approx(expected_s, rel=1e-12)


def test_views_take_no_time_on_the_device(toy):
    a = torch.ones(4, 4, device=toy[0])
    with par.record() as timeline:
        a.t().reshape(2, 8)[0].detach().view(4, 2)
    assert len(timeline.on(toy[0])) == 1  # reshape of a transposed matrix copies
    assert [s.name for s in timeline.on(toy[0])] == ["clone"]


def test_what_needs_a_value_makes_the_host_wait(toy):
    a = torch.ones(4, device=toy[1])
    for needs in (
        lambda: a.sum().item(),
        lambda: a.cpu(),
        lambda: bool(a[0] > 0),
        lambda: a.nonzero(),
        lambda: a[a > 0],
        lambda: a.tolist(),
        lambda: repr(a),
        lambda: torch.zeros(4).copy_(a, non_blocking=True),  # into pageable memory
        lambda: torch.ones(4).to(toy[1], non_blocking=True),  # from pageable memory
    ):
        with par.record() as timeline:
            needs()
        assert timeline.on("host", "wait").spans
        assert now_s(wait=False) >= timeline.on(toy[1]).end_s


def test_what_needs_no_value_does_not(toy):
    a = torch.ones(4, device=toy[0])
    pinned = torch.ones(4).pin_memory()
    torch.vgpu.synchronize()
    with par.record() as timeline:
        a + a
        a.to(toy[1])
        pinned.to(toy[0], non_blocking=True)
        a.to("cpu", non_blocking=True)
        pinned.copy_(a, non_blocking=True)
    assert not timeline.on("host", "wait").spans


def test_a_backward_pass_has_a_lane_a_device(toy):
    a = torch.ones(4, device=toy[0], requires_grad=True)
    b = torch.ones(4, device=toy[1], requires_grad=True)
    losses = [(a * 2).sum(), (b * 2).sum()]
    torch.vgpu.synchronize(0)
    torch.vgpu.synchronize(1)
    with par.record() as timeline:
        torch.autograd.backward(losses)
    lanes = {}
    for span in timeline.on("host", "dispatch"):
        lanes.setdefault(span.stream, []).append(span)
    lanes.pop("main", None)
    assert len(lanes) == 2
    together = [[s.start_s for s in lane] for lane in lanes.values()]
    assert together[0][0] == together[1][0]


def test_backward_passes_one_after_the_other_queue_one_after_the_other(toy):
    def lasted(separately):
        tensors = [torch.ones(4, device=d, requires_grad=True) for d in toy[:2]]
        losses = [(t * 2).sum() for t in tensors]
        with par.record() as timeline:
            if separately:
                for loss in losses:
                    loss.backward()
            else:
                torch.autograd.backward(losses)
        return timeline.on("host", "dispatch").duration_s

    # The caller makes the first gradient of each loss; then each device multiplies once, both at
    # the same time if it is one pass. Views take this host no time.
    assert lasted(separately=False) == 2 + 1
    assert lasted(separately=True) == (1 + 1) + (1 + 1)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_takes_the_time_of_its_second_forward_pass(toy, use_reentrant):
    def net(x):
        return (x.sin() * 2).cos()

    def kernels(forward):
        x = torch.ones(4, device=toy[0], requires_grad=True)
        with par.record() as timeline:
            forward(x).sum().backward()
        return len(timeline.on(toy[0], "compute"))

    again = kernels(lambda x: checkpoint(net, x, use_reentrant=use_reentrant))
    assert again >= kernels(net) + 2  # the sine and the product once more
    x = torch.ones(4, device=toy[0], requires_grad=True)
    loss = checkpoint(net, x, use_reentrant=use_reentrant).sum()
    with par.record() as timeline:
        loss.backward()
    dispatches = sorted((s.start_s, s.end_s) for s in timeline.on("host", "dispatch"))
    # One thread does all of it, an inner backward pass too: it is never in two places at once.
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(dispatches))


def test_a_backward_pass_that_fails_leaves_the_clock_usable(toy):
    x = torch.ones(4, device=toy[0], requires_grad=True)
    y = (x * 2).sin()
    y.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    watch = par.Timer()
    (x * 2).sum().backward()
    assert watch.stop() > 0
    with par.record() as timeline:
        x + 1
    assert {s.stream for s in timeline.on("host", "dispatch")} == {"main"}


def test_streams_overlap_copies_with_kernels(gpus):
    with par.simulate(MACHINE, with_values=True) as devices:
        a = torch.ones(10, device=devices[0])
        side, done = torch.vgpu.Stream(devices[0]), torch.vgpu.Event()
        torch.vgpu.synchronize(0)
        with par.record() as timeline:
            done.record()
            with torch.vgpu.stream(side):
                side.wait_event(done)
                a.to("cpu", non_blocking=True)
            a + 1
        copy, add = timeline.on(devices[0], "copy"), timeline.on(devices[0], "compute")
        assert copy.start_s < add.end_s
        assert add.start_s < copy.end_s
        torch.vgpu.current_stream(0).wait_stream(side)
        with par.record() as timeline:
            a + 1
        assert timeline.on(devices[0], "compute").start_s >= copy.end_s


# --- shapes only ----------------------------------------------------------------------------------


class LeNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 20, 3),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
        )
        self.head = nn.Linear(4, 10)

    def forward(self, X):
        Y = self.first(X)
        Y = F.relu(Y + self.body(Y))
        return self.head(F.adaptive_avg_pool2d(Y, 1).flatten(1))


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=False),
}


def training_run(make_net, make_optimizer, device_ids, *, with_values):
    """All spans of three training steps."""
    torch.manual_seed(0)
    with par.simulate("2x-v100-textbook", with_values=with_values) as devices:
        net = make_net().to(devices[0])
        optimizer = make_optimizer(net.parameters())
        forward = nn.DataParallel(net, device_ids) if len(device_ids) > 1 else net
        with par.record() as timeline:
            for _ in range(3):
                X, y = torch.zeros(8, 1, 28, 28), torch.zeros(8, dtype=torch.long)
                X, y = X.to(devices[0]), y.to(devices[0])
                optimizer.zero_grad()
                loss = F.cross_entropy(forward(X), y)
                loss.backward()
                optimizer.step()
                loss.item()
        peaks = [torch.vgpu.max_memory_allocated(i) for i in range(2)]
    return timeline.spans, peaks


@pytest.mark.parametrize("device_ids", [[0], [0, 1]])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", [LeNet, Residual])
def test_shapes_alone_give_the_times_of_real_arithmetic(gpus, net, optimizer, device_ids):
    real, real_peaks = training_run(net, OPTIMIZERS[optimizer], device_ids, with_values=True)
    shapes, peaks = training_run(net, OPTIMIZERS[optimizer], device_ids, with_values=False)
    assert len(real) > 300
    assert shapes == real
    assert peaks == real_peaks


def test_a_run_takes_the_same_time_in_another_process(gpus):
    folder = str(Path(__file__).parent)
    code = f"""
import sys
sys.path[:0] = [{folder!r}, {str(Path(folder).parent)!r}]
from test_clock import run_checksum
print(run_checksum())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == run_checksum()


def run_checksum():
    found, peaks = training_run(Residual, OPTIMIZERS["SGD"], [0, 1], with_values=True)
    return repr([(s.name, s.start_s, s.end_s) for s in found][::7] + peaks)


def test_views_and_writing_in_place_without_values(gpus):
    kept = torch.arange(4.0, device=gpus[0])
    with par.shape_only():
        a = torch.zeros(4, 6, device=gpus[0])
        b = a.t()[1:, ::2]
        assert (b.shape, b.stride(), b.storage_offset()) == ((5, 2), (1, 12), 1)
        assert a[2:].view(-1)[3:].storage_offset() == 15
        b += 1
        b.unsqueeze_(0)
        assert b.shape == (1, 5, 2)
        a[0] = 3.0
        torch.add(a, 1, out=(c := torch.empty(0, device=gpus[0])))
        assert c.shape == (4, 6)
        assert a.to(gpus[1]).device == gpus[1]
        assert torch.isnan(a.cpu()).all()
        assert a.long().sum().item() == 0
        assert a.data_ptr() == a.view(-1).data_ptr()
        assert a.data_ptr() != c.data_ptr()
        with pytest.raises(RuntimeError, match="from shapes alone"):
            a.nonzero()
        with pytest.raises(RuntimeError, match="same device"):
            a + torch.zeros(4, 6, device=gpus[1])
    assert kept.tolist() == [0, 1, 2, 3]
    assert torch.zeros(2, device=gpus[0]).tolist() == [0, 0]


def test_equal_numbers_of_two_types_are_two_things_without_values(gpus):
    with par.shape_only():
        a = torch.zeros(2, dtype=torch.bool, device=gpus[0])
        assert [(a + x).dtype for x in (True, 1, 1.0, True)] == [
            torch.bool,
            torch.int64,
            torch.float32,
            torch.bool,
        ]
        b = torch.zeros(2, dtype=torch.int64, device=gpus[0])
        assert (b / 2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (b / 2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


# --- record, simulate, host_work ------------------------------------------------------------------


def test_records_nest_and_end(toy):
    a = torch.ones(2, device=toy[0])
    with par.record() as outer:
        a + 1
        with par.record() as inner:
            a + 1
    a + 1
    assert len(outer.on(toy[0])) == 2
    assert inner.on(toy[0]).spans == outer.on(toy[0]).spans[1:]
    assert outer.clock == "simulated on toy"


def test_simulating_moves_neither_clock_nor_memory_outside(gpus):
    before = now_s(wait=False)
    held = torch.vgpu.memory_allocated()
    with par.simulate("8x-a100-nvswitch", 5) as devices:
        assert len(devices) == torch.vgpu.device_count() == 5
        assert now_s(wait=False) == 0
        torch.ones(10**9, device=devices[4])
        par.host_work(3, "load")
        assert now_s(wait=False) > 3
        assert torch.vgpu.get_device_name() == "A100-SXM4-40GB (virtual)"
    assert torch.vgpu.device_count() == 4
    assert (now_s(wait=False), torch.vgpu.memory_allocated()) == (before, held)


def test_simulating_computes_values_only_if_asked(gpus):
    for with_values in (True, False):
        with par.simulate("2x-v100-textbook", with_values=with_values) as devices:
            total = torch.ones(3, device=devices[1]).sum().item()
            assert (total == 3) == with_values


def test_host_work_takes_no_negative_time(toy):
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="zero seconds or more"):
            par.host_work(wrong, "load")


def test_an_unknown_machine_is_named_with_those_that_are_near(gpus):
    with (
        pytest.raises(ValueError, match=r"no machine is called '2x-v100'; there is .*textbook"),
        par.simulate("2x-v100"),
    ):
        pass


# --- timelines ------------------------------------------------------------------------------------


def test_what_a_timeline_tells():
    timeline = Timeline(
        "measured",
        [
            Span("vgpu:1", 0, "compute", "a", 2, 5),
            Span("host", "main", "dispatch", "a", 1, 2),
            Span("vgpu:1", 1, "copy", "b", 4, 7, bytes=8),
            Span("vgpu:0", 0, "compute", "c", 9, 11),
        ],
    )
    assert timeline.devices == ["host", "vgpu:0", "vgpu:1"]
    assert (timeline.start_s, timeline.end_s, timeline.duration_s) == (1, 11, 10)
    assert timeline.on("vgpu:1").busy_s == 5
    assert timeline.busy_fraction("vgpu:1") == 0.5
    assert timeline.busy_fraction("vgpu:1", "copy") == 0.3
    assert [s.name for s in timeline.where(lambda s: s.bytes)] == ["b"]
    assert (len(timeline), len(Timeline("measured")), Timeline("measured").duration_s) == (4, 0, 0)


def test_machines_grow_and_compare():
    textbook = machines.machine()
    assert machines.machine("2x-v100-textbook") is textbook
    bigger = textbook.with_accelerators(5)
    assert len(bigger.accelerators) == 5
    assert bigger.is_like(textbook)
    assert not bigger.is_like(textbook.with_peer(None))
    mixed = replace(textbook, accelerators=(machines.V100, machines.A100))
    assert mixed.with_accelerators(3).accelerators == (machines.V100, machines.A100, machines.V100)
    assert not mixed.is_like(textbook)
    with pytest.raises(ValueError, match="at least one"):
        textbook.with_accelerators(0)
