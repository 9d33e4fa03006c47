"""Trace files: what the published format asks for, what Perfetto binds arrows to, and back again.

The checks follow "Trace Event Format" (Google): fields of each phase, metadata, flow events bound
to the slice around them; and what Perfetto's documentation adds: slices of a thread nest.
"""

import gzip
import itertools
import json
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d2lpar as par
from d2lpar.timeline import MemorySample, Span, Timeline
from d2lpar.timeline.traces.trace_events import WAITING_COPIES

FIELDS = {  # of each phase: what it must have, beside ph, name, pid and tid, and what it may
    "M": ({"args"}, set()),
    "X": ({"cat", "ts", "dur", "args"}, set()),
    "C": ({"ts", "args"}, set()),
    "s": ({"cat", "ts", "id"}, set()),
    "f": ({"cat", "ts", "id", "bp"}, set()),
}
METADATA = {  # name: what its args must hold
    "process_name": ("name", str), "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str), "thread_sort_index": ("sort_index", int),
}  # fmt: skip


def written(timeline: Timeline) -> dict:
    """What `save_trace` writes into one file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        timeline.save_trace(path)
        return json.loads(path.read_text(encoding="utf-8"))


def spans_of(events: list[dict]) -> list[dict]:
    """The events that stand for spans; the others are calls within them."""
    return [event for event in events if "kind" in event["args"]]


def check(trace: dict) -> dict[str, list[dict]]:
    """Assert that the trace keeps to the format; returns its events by phase."""
    trace = json.loads(json.dumps(trace, allow_nan=False))
    whole = {"traceEvents", "displayTimeUnit", "otherData", "schemaVersion", "deviceProperties"}
    assert whole <= set(trace) <= whole | {"distributedInfo"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    phases = defaultdict(list)
    for event in trace["traceEvents"]:
        check_event(event)
        phases[event["ph"]].append(event)
    check_names(trace["traceEvents"])
    check_arrows(trace["traceEvents"])
    return phases


def check_event(event: dict) -> None:
    needed, allowed = FIELDS[event["ph"]]
    fields = set(event) - {"ph", "name", "pid", "tid"}
    assert needed <= fields <= needed | allowed, event
    assert type(event["pid"]) is type(event["tid"]) is int
    assert isinstance(event["name"], str)
    assert isinstance(event.get("ts", 0.0), (int, float))
    assert isinstance(event.get("args", {}), dict)
    if event["ph"] == "X":
        assert event["dur"] >= 0
    if event["ph"] == "C":
        assert event["args"]
        assert all(isinstance(value, (int, float)) for value in event["args"].values())
    if event["ph"] == "M":
        key, kind = METADATA[event["name"]]
        assert type(event["args"][key]) is kind
    if event["ph"] == "f":
        assert event["bp"] == "e"


def check_names(events: list[dict]) -> None:
    """Processes and threads are introduced once, before their events; thread numbers are unique."""
    introduced = set()
    for event in events:
        if event["ph"] == "M":
            key = event["name"], event["pid"], event["tid"]
            assert key not in introduced
            introduced.add(key)
            continue
        assert ("process_name", event["pid"], 0) in introduced
        assert ("process_sort_index", event["pid"], 0) in introduced
        if event["ph"] != "C":
            assert ("thread_name", event["pid"], event["tid"]) in introduced
            assert ("thread_sort_index", event["pid"], event["tid"]) in introduced
    threads = [tid for name, _, tid in introduced if name == "thread_name"]
    assert len(threads) == len(set(threads))


def check_arrows(events: list[dict]) -> None:
    """Each arrow begins once, ends at least once, each time in a slice that came before it."""
    slices, starts, ends = defaultdict(list), {}, set()
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            around = slices[event["pid"], event["tid"]]
            assert any(start <= event["ts"] <= end for start, end in around), event
            key = event["cat"], event["name"], event["id"]
            if event["ph"] == "s":
                assert key not in starts
                starts[key] = event["ts"]
            else:
                ends.add(key)
    assert ends == set(starts)


def check_nesting(slices: list[dict]) -> None:
    """Slices of one thread, in whole nanoseconds, lie beside or inside each other."""
    threads = defaultdict(list)
    for event in slices:
        start, length = round(event["ts"] * 1e3), round(event["dur"] * 1e3)
        threads[event["tid"]].append((start, -(start + length)))
    for thread in threads.values():
        open_until = []
        for start, minus_end in sorted(thread):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or -minus_end <= open_until[-1]
            open_until.append(-minus_end)


def names(events: list[dict], what: str) -> dict:
    key = "pid" if what == "process_name" else "tid"
    return {e[key]: e["args"]["name"] for e in events if e["name"] == what}


# Simulated runs


def a_run(machine: par.machines.Machine) -> Timeline:
    """Two steps of model parallelism with a side stream, on two devices."""
    with par.simulate(machine, 2) as gpus, par.record() as timeline:
        layers = [torch.empty(500, 500, device=gpu, requires_grad=True) for gpu in gpus]
        for _ in range(2):
            x = torch.empty(64, 500).to(gpus[0])
            with torch.get_device_module(gpus[0]).Stream(gpus[0]):
                torch.empty(9, 9, device=gpus[0]) + 1
            ((x @ layers[0]).to(gpus[1]) @ layers[1]).sum().backward()
        par.timing.synchronize(gpus)
    return timeline


TEXTBOOK = par.machines.machine("2x-v100-textbook")


@pytest.fixture(
    scope="module", params=[TEXTBOOK, replace(TEXTBOOK, peer=None)], ids=["peers", "through host"]
)
def run(request):
    par.devices(2, kind="virtual", verbose=False)
    return a_run(request.param)


def test_a_run_keeps_to_the_format(run):
    phases = check(written(run))
    check_nesting(phases["X"])
    assert len(spans_of(phases["X"])) == len(run)
    assert len(phases["C"]) == len(run.memory) > 0
    processes = names(phases["M"], "process_name")
    assert list(processes.values()) == ["main"]
    threads = {"main", "thread for vgpu:0", "vgpu:0 stream 0", "vgpu:0 stream 1", "vgpu:1 stream 0"}
    assert threads <= set(names(phases["M"], "thread_name").values())
    order = {e["pid"]: e["args"]["sort_index"] for e in phases["M"] if "process_s" in e["name"]}
    assert sorted(order, key=order.get) == sorted(processes)
    assert written(run)["otherData"]["clock"] == run.clock


def test_every_kernel_and_copy_has_an_arrow_from_its_dispatch(run):
    phases = check(written(run))
    slices = {(e["tid"], e["ts"]): e for e in phases["X"]}
    dispatches = {
        e["args"].get("External id"): e for e in phases["X"] if e["args"].get("kind") == "dispatch"
    }
    ends = [e for e in phases["f"] if e["name"] == "ac2g"]
    begins = {e["id"]: e for e in phases["s"] if e["name"] == "ac2g"}
    assert len(ends) == len({span.correlation for span in run if span.device != "host"})
    for end in ends:
        queued, begin = slices[end["tid"], end["ts"]], begins[end["id"]]
        call, dispatch = slices[begin["tid"], begin["ts"]], dispatches[end["id"]]
        assert call["cat"] == "cuda_runtime"
        assert call["args"]["correlation"] == end["id"]
        calls = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync"}
        assert call["name"] == calls[queued["cat"]]
        ended = [round(1e3 * (e["ts"] + e["dur"])) for e in (call, dispatch)]
        assert ended[0] == ended[1] <= round(1e3 * queued["ts"])


def test_copies_between_devices_have_arrows_to_where_they_go(run):
    phases = check(written(run))
    devices = {e["tid"]: e["args"]["device"] for e in phases["M"] if e["name"] == "thread_name"}
    slices = {(e["tid"], e["ts"]): e for e in phases["X"]}
    ends = {e["id"]: e for e in phases["f"] if e["name"] == "copied"}
    ways = []
    for begin in [e for e in phases["s"] if e["name"] == "copied"]:
        sent, then = slices[begin["tid"], begin["ts"]], ends[begin["id"]]
        assert sent["cat"] == "gpu_memcpy"
        assert sent["args"]["target"] == devices[then["tid"]]
        assert sent["ts"] + sent["dur"] <= then["ts"] + 1e-6
        ways.append((devices[begin["tid"]], devices[then["tid"]]))
    assert sorted(ways) == [("vgpu:0", "vgpu:1")] * 2 + [("vgpu:1", "vgpu:0")] * 2


def test_arguments_say_how_much_and_how_fast(run):
    slices = check(written(run))["X"]
    product = next(e for e in slices if e["name"] == "mm" and e["cat"] == "kernel")
    assert product["args"]["flops"] == 2 * 64 * 500 * 500
    rate = product["args"]["flops"] / product["dur"] / 1e6
    assert product["args"]["TFLOP/s"] == pytest.approx(rate, rel=1e-2)
    sent = next(e for e in slices if e["args"].get("target") == "vgpu:1")
    assert sent["args"]["bytes"] == 64 * 500 * 4
    assert sent["args"]["GB/s"] == pytest.approx(64 * 2 / sent["dur"], rel=1e-2)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_file_is_what_the_dictionary_is_and_reads_back(run, tmp_path, name):
    path = tmp_path / name
    run.save_trace(path)
    content = (gzip.decompress(path.read_bytes()) if ".gz" in name else path.read_bytes()).decode()
    assert json.loads(content) == written(run)
    again = Timeline.from_chrome_trace(path)
    assert again.clock == run.clock
    for mine, theirs in zip(run.spans, again.spans, strict=True):
        assert theirs.start_s == pytest.approx(mine.start_s, abs=1e-9)
        assert theirs.end_s == pytest.approx(mine.end_s, abs=1e-9)
        assert replace(theirs, start_s=mine.start_s, end_s=mine.end_s) == mine
    assert [(m.device, m.bytes) for m in again.memory] == [(m.device, m.bytes) for m in run.memory]
    assert Timeline.from_chrome_trace(written(again)) == again


def test_what_is_back_to_back_stays_so(run):
    again = Timeline.from_chrome_trace(written(run))
    chains = [t.critical_path().spans for t in (run, again)]
    assert [(s.device, s.name) for s in chains[0]] == [(s.device, s.name) for s in chains[1]]
    touching = [[a.end_s == b.start_s for a, b in itertools.pairwise(chain)] for chain in chains]
    assert touching[0] == touching[1]
    assert sum(touching[0]) > len(touching[0]) / 2


def test_a_streamed_file_keeps_to_the_format(gpus, tmp_path):
    path = tmp_path / "run.json"
    with par.record(to=path):
        x = torch.ones(100, 100, device=gpus[0])
        (x @ x).to(gpus[1]).sum().item()
    phases = check(json.loads(path.read_text()))
    check_nesting(phases["X"])
    assert {e["name"] for e in phases["s"]} == {"ac2g", "copied"}


# Any timeline

times = st.integers(0, 40).map(lambda n: n / 4)
names_of_streams = st.one_of(st.integers(0, 3), st.sampled_from(["main", "stream 1", '"; é\n']))
spans = st.builds(
    lambda device, stream, kind, name, start, length, numbers, target: Span(
        device, stream, kind, name, start, start + length, *numbers, target
    ),
    st.sampled_from(["host", "gpu:0", "gpu:10", "link"]),
    names_of_streams,
    st.sampled_from(["compute", "copy", "dispatch", "wait", "odd"]),
    st.text(max_size=5),
    times,
    times,
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**15), st.integers(0, 4)),
    st.sampled_from(["", "host", "gpu:0", "gpu:10"]),
)
samples = st.builds(
    MemorySample, st.sampled_from(["gpu:0", "gpu:3"]), times, st.integers(0, 10**12)
)
timelines = st.builds(
    Timeline, st.sampled_from(["toy", "measured"]), st.lists(spans), st.lists(samples)
)


@given(timelines)
def test_any_timeline_can_be_written_and_read(timeline):
    unique = {s.correlation: s for s in timeline if s.device == "host"}
    timeline.spans = [s for s in timeline if s.device != "host" or unique[s.correlation] is s]
    trace = written(timeline)
    check(trace)
    assert Timeline.from_chrome_trace(json.loads(json.dumps(trace))) == timeline


def test_arrows_that_nobody_meets_do_not_pile_up():
    sent = [
        Span("gpu:0", 0, "copy", "copy", i, i + 1, target="gpu:1")
        for i in range(WAITING_COPIES * 3)
    ]
    last = Span("gpu:1", 0, "compute", "k", len(sent), len(sent) + 1)
    phases = check(written(Timeline("toy", [*sent, last])))
    assert len(phases["s"]) == len(phases["f"]) == WAITING_COPIES


def test_what_is_no_trace_of_ours_is_named(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"other\.json' is no trace"):
        Timeline.from_chrome_trace(path)
    with pytest.raises(ValueError, match="was written neither by"):
        Timeline.from_chrome_trace({"traceEvents": []})
