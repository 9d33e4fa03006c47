"""What a timeline tells: hand-computed schedules, and identities that hold for all of them."""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d2lpar as par
from d2lpar.timeline import MemorySample, Span, Timeline
from d2lpar.timeline.streaming import StreamedTimeline, recording


def compute(device, start, end, name="k", stream=0, **more):
    return Span(device, stream, "compute", name, start, end, **more)


def copy(device, target, start, end, stream=0, **more):
    return Span(device, stream, "copy", "copy", start, end, target=target, **more)


def host(kind, start, end, name="h", stream="main", **more):
    return Span("host", stream, kind, name, start, end, **more)


# Three devices' worth of everything: compute 2-6 and 8-9 on gpu:0, a copy 5-8 from it to gpu:1,
# which computes 8-10; the host dispatches 0-2 and waits 2-10.
SMALL = Timeline(
    "toy",
    [
        host("dispatch", 0, 1, correlation=1),
        host("dispatch", 1, 2, correlation=2),
        compute("gpu:0", 2, 6, correlation=1),
        copy("gpu:0", "gpu:1", 5, 8, stream=1, correlation=2),
        compute("gpu:0", 8, 9),
        compute("gpu:1", 8, 10),
        host("wait", 2, 10),
    ],
)


# Busy, idle, hidden, exposed


def test_a_step_could_wait_for_host_gpu_or_links():
    assert SMALL.could_wait_for() == {"host": 2, "GPU": 5, "links": 3}
    assert Timeline("toy").could_wait_for() == {"host": 0, "GPU": 0, "links": 0}


def test_processes_and_gpus_work_at_the_same_time():
    ranks = [
        host("dispatch", 0, 2, stream="rank 0"),
        host("host", 2, 5, stream="rank 0, thread for gpu:0"),
        host("dispatch", 0, 4, stream="rank 1"),
        compute("gpu:0", 2, 6),
        compute("gpu:1", 4, 7),
    ]
    assert Timeline("toy", ranks).could_wait_for() == {"host": 5, "GPU": 4, "links": 0}


def test_times_of_a_small_schedule():
    assert (SMALL.duration_s, SMALL.accelerators) == (10, ["gpu:0", "gpu:1"])
    assert SMALL.on("gpu:0").busy_s == 7
    assert SMALL.busy_fraction("gpu:0", "compute") == 0.5
    assert SMALL.on("host", "wait").busy_s == 8
    assert SMALL.idle_s("host") == 0


def test_overlap_is_what_both_do_at_once():
    copies, kernels = SMALL.on("gpu:0", "copy"), SMALL.on("gpu:0", "compute")
    assert copies.overlap_s(kernels) == kernels.overlap_s(copies) == 1
    assert Timeline("toy").overlap_s(kernels) == 0


def test_communication_is_exposed_where_nothing_is_computed_on_either_side():
    assert SMALL.exposed_communication_s("gpu:0") == 2  # 6 to 8
    assert SMALL.exposed_communication_s("gpu:1") == 3  # 5 to 8, while it receives


def test_bubbles_are_what_is_left():
    assert SMALL.idle_s("gpu:0") == 3
    assert SMALL.idle_s("gpu:1") == 5
    assert SMALL.bubble_fraction("gpu:0") == 0.3
    assert SMALL.bubble_fraction() == 0.4
    assert Timeline("toy").bubble_fraction() == 0


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 1), (4, 4), (4, 16), (8, 3)])
@pytest.mark.parametrize("backward_s", [1, 2])
def test_the_bubble_of_a_pipeline_is_gpipes(stages, micro_batches, backward_s):
    spans = []
    for k, m in itertools.product(range(stages), range(micro_batches)):
        spans.append(compute(f"gpu:{k}", k + m, k + m + 1))
        forward_s = stages + micro_batches - 1
        start = forward_s + (stages - 1 - k + m) * backward_s
        spans.append(compute(f"gpu:{k}", start, start + backward_s))
    bubble = (stages - 1) / (micro_batches + stages - 1)
    timeline = Timeline("toy", spans)
    assert timeline.bubble_fraction() == pytest.approx(bubble)
    assert timeline.bubble_fraction("gpu:0") == pytest.approx(bubble)


# The critical path


def path(timeline, **options):
    return [(s.device, s.kind, s.start_s, s.end_s) for s in timeline.critical_path(**options)]


def test_the_critical_path_goes_back_through_copy_kernel_and_dispatch():
    spans = [
        host("dispatch", 0, 1, correlation=1),
        host("dispatch", 1, 2, correlation=2),
        host("dispatch", 2, 3, correlation=3),
        compute("gpu:0", 1, 6, correlation=1),
        copy("gpu:0", "gpu:1", 6, 8, correlation=2),
        compute("gpu:1", 8, 10, correlation=3),
        compute("gpu:1", 3, 5, stream=2),
        host("wait", 3, 10),
        host("host", 10, 11),
    ]
    assert path(Timeline("toy", spans)) == [
        ("host", "dispatch", 0, 1), ("gpu:0", "compute", 1, 6), ("gpu:0", "copy", 6, 8),
        ("gpu:1", "compute", 8, 10), ("host", "host", 10, 11),
    ]  # fmt: skip


def test_a_run_bound_by_its_host_is_explained_by_dispatches():
    spans = [host("dispatch", i, i + 1, correlation=i + 1) for i in range(4)]
    spans += [compute("gpu:0", i + 1, i + 1.5, correlation=i + 1) for i in range(4)]
    assert path(Timeline("toy", spans)) == [
        *[("host", "dispatch", i, i + 1) for i in range(4)], ("gpu:0", "compute", 4, 4.5),
    ]  # fmt: skip


def test_of_several_reasons_the_nearest_counts():
    """All end at 4: the stream, the dispatch, the engine, a copy that arrives, another device."""
    reasons = {
        "stream": compute("gpu:1", 1, 4),
        "dispatch": host("dispatch", 3, 4, correlation=7),
        "engine": compute("gpu:1", 2, 4, stream=5),
        "copy": copy("gpu:0", "gpu:1", 0, 4),
        "other": compute("gpu:2", 3, 4),
    }
    late = compute("gpu:1", 4, 5, correlation=7)
    for left_out in range(len(reasons)):
        names = list(reasons)[left_out:]
        spans = [reasons[name] for name in reversed(names)] + [late]
        assert Timeline("toy", spans).critical_path().spans[-2] == reasons[names[0]]


def test_a_wait_stands_for_what_it_waited_for():
    spans = [
        compute("gpu:0", 0, 5),
        compute("gpu:1", 0, 7),
        host("wait", 1, 8),  # as measured: it returns a little after the work has ended
        host("host", 8, 9),
    ]
    assert path(Timeline("toy", spans)) == [
        ("gpu:1", "compute", 0, 7), ("host", "wait", 7, 8), ("host", "host", 8, 9),
    ]  # fmt: skip
    alone = [host("host", 0, 1), host("wait", 1, 2), host("host", 2, 3)]
    assert Timeline("toy", alone).critical_path().spans == alone


def test_real_kernels_start_a_little_after_their_reason():
    spans = [
        host("dispatch", 0, 1, correlation=1),
        compute("gpu:1", 0, 1 + 3e-6),  # chance
        compute("gpu:0", 1 + 5e-6, 2, correlation=1),
    ]
    assert [s.device for s in Timeline("measured", spans).critical_path()] == ["host", "gpu:0"]
    assert [s.device for s in Timeline("toy", spans).critical_path()] == ["gpu:1", "gpu:0"]
    assert Timeline("toy", spans).critical_path(slack_s=1e-5).devices == ["host", "gpu:0"]


def test_the_critical_path_of_a_simulated_run_has_no_gap(gpus):
    with par.simulate("2x-v100-textbook") as devices, par.record() as timeline:
        layers = [torch.empty(800, 800, device=d, requires_grad=True) for d in devices]
        side = torch.get_device_module(devices[0]).Stream(devices[0])
        for _ in range(3):
            x = torch.empty(64, 800).to(devices[0])
            with side:
                layers[0].detach() @ layers[0].detach()
            par.host_work(1e-5, "batch")
            ((x @ layers[0]).to(devices[1]) @ layers[1]).sum().backward()
        par.timing.synchronize(devices)
    chain = timeline.critical_path()
    assert chain.end_s == timeline.end_s
    assert chain.start_s == timeline.start_s
    assert chain.busy_s == pytest.approx(timeline.duration_s, rel=1e-12)
    assert {"dispatch", "compute", "copy"} <= {span.kind for span in chain}


# Identities

times = st.integers(0, 40).map(lambda n: n / 4)
spans = st.builds(
    lambda device, stream, kind, start, length, correlation, target: Span(
        device,
        stream,
        kind,
        "work",
        start,
        start + length,
        correlation=correlation,
        target=target if kind == "copy" else "",
    ),
    st.sampled_from(["host", "gpu:0", "gpu:1", "gpu:2"]),
    st.integers(0, 2),
    st.sampled_from(["compute", "copy", "dispatch", "wait"]),
    times,
    times,
    st.integers(0, 5),
    st.sampled_from(["", "host", "gpu:0", "gpu:1"]),
)
timelines = st.lists(spans, max_size=30).map(lambda spans: Timeline("toy", spans))


@given(timelines, timelines)
def test_union_and_overlap_add_up(a, b):
    both = Timeline("toy", a.spans + b.spans)
    assert math.isclose(a.busy_s + b.busy_s, both.busy_s + a.overlap_s(b), abs_tol=1e-9)
    assert a.overlap_s(b) == b.overlap_s(a) <= min(a.busy_s, b.busy_s)
    assert a.overlap_s(a) == a.busy_s <= a.duration_s


@given(timelines)
def test_computing_exposed_communication_and_idling_fill_the_time(timeline):
    for name in timeline.accelerators:
        own = timeline.where(lambda s: s.kind in ("compute", "copy"))
        own = Timeline("toy", [*own, *timeline.on("host")])  # the same makespan
        parts = own.on(name, "compute").busy_s + own.exposed_communication_s(name)
        assert math.isclose(parts + own.idle_s(name), own.duration_s, abs_tol=1e-9)
        assert 0 <= own.bubble_fraction(name) <= 1 + 1e-12


@given(timelines)
def test_a_critical_path_is_a_chain_that_reaches_the_end(timeline):
    chain = timeline.critical_path().spans
    assert bool(chain) == bool(timeline.spans)
    for before, after in itertools.pairwise(chain):
        assert before.end_s <= after.start_s
    assert sum(span.duration_s for span in chain) <= timeline.duration_s + 1e-9
    if chain:
        assert chain[-1].end_s == timeline.end_s
        first = min(span.end_s for span in timeline)
        assert chain[0].start_s <= first or chain[0].kind == "wait"  # nothing ended before it
    recorded = {(s.device, s.stream, s.kind, s.end_s) for s in timeline}
    assert {(s.device, s.stream, s.kind, s.end_s) for s in chain} <= recorded


# Tables


def test_a_summary_counts_and_shares():
    rows = SMALL.summary()
    assert [(row.group, row.count, row.total_s) for row in rows] == [
        ("wait", 1, 8), ("compute", 3, 7), ("copy", 1, 3), ("dispatch", 2, 2),
    ]  # fmt: skip
    assert [row.share for row in rows] == [0.4, 0.35, 0.15, 0.1]
    assert rows[1].mean_s == pytest.approx(7 / 3)
    work = [compute("gpu:0", 0, 1e-3, "mm", bytes=3, flops=5), compute("gpu:0", 1, 2, "add")]
    named = Timeline("toy", [*work, work[0]]).summary("name")
    assert [(row.group, row.bytes, row.flops) for row in named] == [("add", 0, 0), ("mm", 6, 10)]
    assert [row.group for row in SMALL.summary("device")] == ["host", "gpu:0", "gpu:1"]
    with pytest.raises(ValueError, match="one of device, kind, name, not 'colour'"):
        SMALL.summary("colour")


def test_a_table_is_a_line_a_group():
    lines = Timeline("toy", [compute("gpu:0", 0, 2e-3, "mm"), host("host", 0, 6e-6)]).table("name")
    assert [line.split() for line in lines.splitlines()] == [
        ["count", "total", "mean", "share"],
        ["mm", "1", "2", "ms", "2", "ms", "99.7%"],
        ["h", "1", "6", "µs", "6", "µs", "0.3%"],
    ]
    assert len({len(line) for line in lines.splitlines()}) == 1


# Long recordings


def test_a_long_recording_keeps_nothing_and_sums_it_up(tmp_path):
    with recording("toy", to=tmp_path / "run.json") as timeline:
        for i in range(10):
            timeline.add(compute("gpu:0", i, i + 1, name=f"k{i % 2}", flops=2))
            timeline.add_memory(MemorySample("gpu:0", i, i))
            assert not timeline.spans
    assert timeline.dropped.count == 10
    rows = timeline.summary("name")
    assert [(row.group, row.count, row.total_s, row.flops) for row in rows] == [
        ("k0", 5, 5, 10), ("k1", 5, 5, 10),
    ]  # fmt: skip


@given(st.lists(spans, max_size=20))
def test_a_file_does_not_change_the_summary(tmp_path_factory, given_spans):
    file = tmp_path_factory.mktemp("streamed") / "run.json"
    whole, part = Timeline("toy", given_spans), StreamedTimeline("toy", file)
    for span in given_spans:
        part.add(span)
    part.close()
    assert part.spans == []
    for by in ("kind", "name", "device"):
        mine = {row.group: (row.count, row.total_s) for row in part.summary(by)}
        assert mine == {row.group: (row.count, row.total_s) for row in whole.summary(by)}


def test_a_recording_of_virtual_devices_can_be_streamed(gpus, tmp_path):
    path = tmp_path / "run.json"

    def run():
        x = torch.ones(8, 8, device=gpus[0])
        for _ in range(20):
            x = x + 1
        return x.sum().item()

    with par.record() as whole:
        run()
    with par.record(to=path) as streamed:
        run()
    assert (streamed.spans, streamed.memory) == ([], [])
    counts = [{row.group: row.count for row in t.summary()} for t in (whole, streamed)]
    assert counts[0] == counts[1]
    read = Timeline.from_chrome_trace(path)
    assert read.clock == whole.clock
    assert [(s.device, s.kind, s.name) for s in read] == [(s.device, s.kind, s.name) for s in whole]
    assert read.memory


def test_a_streamed_file_is_valid_after_an_error(gpus, tmp_path):
    path = tmp_path / "run.json"
    with pytest.raises(ZeroDivisionError), par.record(to=path):
        torch.ones(3, device=gpus[0]).sum().item() / 0
    assert len(json.loads(path.read_text())["traceEvents"]) > 4
    assert Timeline.from_chrome_trace(path).spans[-1].name == "item"


def test_wrong_options_are_named(gpus, tmp_path):
    with pytest.raises(FileNotFoundError), par.record(to=tmp_path / "no" / "run.json"):
        pass
    with par.record() as timeline:  # and nothing of those is recording any more
        torch.ones(1, device=gpus[0])
    assert timeline.spans


# Memory


def test_memory_is_sampled_when_operations_and_copies_find_it_changed(gpus):
    with par.simulate("2x-v100-textbook") as (first, second), par.record() as timeline:
        a = torch.empty(1000, 1000, device=first)  # 4 MB, in granules of 512 bytes
        b = a @ a
        b.add_(1)
        del a
        c = b.to(second) + 1
        par.timing.synchronize([first, second])
        del b
    four = 4_000_256
    held = [(sample.device, sample.bytes) for sample in timeline.memory]
    assert [n for d, n in held if d == "vgpu:0"] == [2 * four, four, 0]
    assert [n for d, n in held if d == "vgpu:1"] == [four, 2 * four, four]
    assert c.device == second
    product = timeline.on("host", "dispatch").spans[0]
    assert timeline.memory[0] == MemorySample("vgpu:0", product.end_s, 2 * four)
    assert timeline.memory[-2].time_s == timeline.end_s
