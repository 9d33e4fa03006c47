"""Histories and snapshots of memory in `emulate_cuda`, as torch's visualiser reads them."""

import base64
import gc
import json
import pickle
import re
import time

import pytest
import torch
from torch.cuda import _memory_viz as viz

import d2lpar as par

MB = 2**20


@pytest.fixture(autouse=True)
def cuda():
    torch.set_num_threads(1)
    gc.collect()  # what tests before have left, such as the frames of errors, holds tensors
    with par.emulate_cuda(2, verbose=False) as devices:
        torch.cuda.empty_cache()
        yield devices


def record(**options):
    gc.collect()  # what earlier tests left would be freed at any time
    torch.cuda.memory._record_memory_history(**options)


def snapshot():
    return torch.cuda.memory._snapshot()


def test_a_snapshot_counts_what_the_statistics_of_each_pool_count():
    before = torch.cuda.memory_stats(1)["allocation.small_pool.current"]  # of other tests
    kept = [torch.empty(n, device="cuda:1") for n in (5, 1000, MB, 3 * MB)]
    expected = {}
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] == 1:
            add_up(expected, segment)
    stats = torch.cuda.memory_stats(1)
    assert {name: stats[name] for name in expected} == expected
    assert stats["allocation.small_pool.current"] == before + 2
    assert not any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    assert len(kept) == 4


def add_up(expected, segment):
    states = [block["state"] for block in segment["blocks"]]
    numbers = {
        "allocated_bytes": segment["allocated_size"],
        "reserved_bytes": segment["total_size"],
        "active_bytes": segment["active_size"],
        "requested_bytes": segment["requested_size"],
        "allocation": states.count("active_allocated"),
        "active": sum(state.startswith("active_") for state in states),
        "segment": 1,
        "inactive_split": states.count("inactive") if len(states) > 1 else 0,
    }
    for name, number in numbers.items():
        for pool in ("all", segment["segment_type"] + "_pool"):
            key = f"{name}.{pool}.current"
            expected[key] = expected.get(key, 0) + number


def totals(device):
    stats = torch.cuda.memory_stats(device)
    names = ("reserved_bytes", "allocated_bytes", "active_bytes")
    return [stats[f"{name}.all.current"] for name in names]


def held_here(segments, device):
    mine = [segment for segment in segments if segment["device"] == device]
    names = ("total_size", "allocated_size", "active_size")
    return [sum(segment[name] for segment in mine) for name in names]


def make_some():
    kept = [torch.empty(n * MB, dtype=torch.uint8, device="cuda:1") for n in (1, 2, 3, 4)]
    del kept[1]
    return kept


@pytest.mark.parametrize("recorded", [False, True])
def test_a_snapshot_adds_up_to_the_statistics(recorded):
    if recorded:
        record()
    kept = make_some()
    segments = torch.cuda.memory_snapshot()
    for device in range(2):
        assert held_here(segments, device) == totals(device)
    for segment in segments:
        ends = [block["address"] + block["size"] for block in segment["blocks"]]
        starts = [block["address"] for block in segment["blocks"]]
        assert starts == [segment["address"], *ends[:-1]]
        assert ends[-1] == segment["address"] + segment["total_size"]
    assert len(kept) == 3


def of_tensors(trace):
    """Without what is taken from the device, and given back."""
    return [entry for entry in trace if not entry["action"].startswith("segment_")]


def test_a_history_tells_who_made_and_freed_what():
    record()
    kept = make_some()
    trace = of_tensors(snapshot()["device_traces"][1])
    assert [entry["action"] for entry in trace] == [
        *["alloc"] * 4, "free_requested", "free_completed",
    ]  # fmt: skip
    assert [entry["size"] // MB for entry in trace] == [1, 2, 3, 4, 2, 2]
    assert trace[4]["addr"] == trace[1]["addr"]
    own = [frame for frame in trace[0]["frames"] if frame["filename"] == __file__]
    assert [frame["name"] for frame in own][-2:] == [
        "make_some", "test_a_history_tells_who_made_and_freed_what",
    ]  # fmt: skip
    assert all("d2lpar/vgpu" not in frame["filename"] for frame in trace[0]["frames"])
    assert [e["time_us"] for e in trace] == sorted(e["time_us"] for e in trace)
    again = torch.empty(2 * MB, dtype=torch.uint8, device="cuda:1")
    *_, looked, last = snapshot()["device_traces"][1]
    assert (looked["action"], last["addr"]) == ("snapshot", trace[1]["addr"])
    assert len(kept) + len(again[:1]) == 4


def test_blocks_live_through_the_trace_of_torch_s_own_reader(tmp_path):
    record()
    kept = make_some()
    torch.cuda.memory._dump_snapshot(str(tmp_path / "memory.pickle"))
    found = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    text = viz.trace(found)
    assert "7 entries" not in text.split("Device 1")[0]
    assert " = cudaMalloc(" in text  # of one for 2, 3 and 4 MB, and perhaps of a small one
    assert len(re.findall(r" = \w+\[", text)) == 4
    assert text.count("del ") == 1
    lines = viz.memory(found, format_flamegraph=lambda text: text)
    made = [line for line in lines.splitlines() if "active_allocated" in line]
    mine = [line for line in made if "make_some" in line]
    assert sum(int(line.rpartition(" ")[2]) for line in mine) == 8 * MB
    assert f"segments: {len(found['segments'])}" in viz.segsum(found)
    page = viz.trace_plot(found)
    (file,) = json.loads(page.partition("const local_files = ")[2].partition("\n")[0])
    shown = pickle.loads(base64.b64decode(file["base64"]))
    assert shown["device_traces"] == found["device_traces"]
    assert "Allocator State History" in viz.segment_plot(found)
    left = viz.filter_alloc_free_pairs(found)["device_traces"][1]
    assert [entry["size"] // MB for entry in of_tensors(left)] == [1, 3, 4]
    assert len(kept) == 3


def test_memory_that_a_stream_still_uses_awaits_its_end():
    record()
    side, x = torch.cuda.Stream(), torch.ones(4 * MB, device="cuda:0")
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)
    x.record_stream(side)
    del x
    held = snapshot()
    states = {b["state"] for s in held["segments"] if s["device"] == 0 for b in s["blocks"]}
    assert "active_awaiting_free" in states
    assert held_here(held["segments"], 0) == totals(0)
    assert [e["action"] for e in held["device_traces"][0]][-1] == "free_requested"
    torch.cuda.synchronize()
    y = torch.empty(1, device="cuda:0")
    assert "free_completed" in [e["action"] for e in snapshot()["device_traces"][0]]
    assert len(y) == 1


def test_what_is_recorded_can_be_chosen():
    record(max_entries=2, skip_actions=["free_requested"], context="alloc")
    kept = make_some()
    trace = snapshot()["device_traces"][1]
    assert [entry["action"] for entry in trace] == ["alloc", "free_completed"]
    record(enabled="state")
    kept += make_some()
    assert snapshot()["device_traces"][1] == []
    record(enabled=None)
    kept.append(kept_as("late_one"))
    assert "late_one" not in json.dumps(snapshot())
    with pytest.raises(RuntimeError, match="enabled of _record_memory_history must be in"):
        record(enabled="everything")
    with pytest.raises(NotImplementedError, match="record_pinned_host_memory"):
        record(record_pinned_host_memory=True)
    assert len(kept) == 7


def test_more_memory_than_there_can_be_is_refused_in_torch_s_words():
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        torch.empty(2**61, dtype=torch.int8, device="cuda")


def kept_as(name):
    """Make a tensor in a function of that name."""
    exec(f"def {name}(): return torch.empty(MB, device='cuda')", globals())
    return globals()[name]()


def test_another_choice_of_stacks_goes_on_with_the_history():
    record(context="all")
    kept = [kept_as("first")]
    record(context=None)
    kept.append(kept_as("second"))
    record(context="all")
    kept.append(kept_as("third"))
    text = json.dumps(snapshot())
    assert [name in text for name in ("first", "second", "third")] == [True, False, True]
    record(context="all", clear_history=True)
    assert snapshot()["device_traces"][0] == []
    assert len(kept) == 3


def test_stacks_that_there_are_not_are_refused_as_by_torch():
    with pytest.raises(RuntimeError, match=r"stacks .* must be in .*'python', 'all'.* not 'zz'"):
        torch.cuda.memory._record_memory_history(stacks="zz")


def test_stacks_of_what_there_is_are_not_kept_with_what_has_happened():
    record(context="state")
    kept, freed = kept_as("kept_one"), kept_as("freed_one")
    del freed
    text = json.dumps(snapshot())
    assert [name in text for name in ("kept_one", "freed_one")] == [True, False]
    assert kept.is_cuda


def test_statistics_and_snapshots_agree_for_each_pool():
    gc.collect()
    before = torch.cuda.memory_stats(1)
    small = [torch.empty(n, dtype=torch.uint8, device="cuda:1") for n in (3, MB, 0)]
    large = torch.empty(3 * MB, dtype=torch.uint8, device="cuda:1")
    del small[0]
    stats = torch.cuda.memory_stats(1)
    for pool, expected in (("small", [1, MB]), ("large", [1, 3 * MB])):
        names = [f"{name}.{pool}_pool.current" for name in ("allocation", "requested_bytes")]
        assert [stats[name] - before[name] for name in names] == expected
    for pool in ("small", "large"):
        segments = [s for s in torch.cuda.memory_snapshot() if s["device"] == 1]
        mine = [s for s in segments if s["segment_type"] == pool]
        for name, size in (("reserved", "total_size"), ("allocated", "allocated_size")):
            total = sum(segment[size] for segment in mine)
            assert stats[f"{name}_bytes.{pool}_pool.current"] == total
    assert large.is_cuda


def test_memory_is_taken_from_the_device_and_given_back():
    names = ("num_device_alloc", "num_device_free", "num_sync_all_streams")

    def counted():
        return [torch.cuda.memory_stats(0)[name] for name in names]

    torch.cuda.empty_cache()
    before = counted()
    x = torch.empty(3 * MB, device="cuda")
    del x
    torch.empty(2 * MB, device="cuda")  # from what is reserved
    torch.cuda.empty_cache()
    torch.cuda.empty_cache()  # which has nothing to give
    assert [b - a for a, b in zip(before, counted(), strict=True)] == [1, 1, 2]


@pytest.mark.parametrize("context", ["alloc", "all", "state", None])
def test_what_is_taken_from_the_device_and_given_back_is_in_the_history(context):
    x = torch.empty(11 * MB, dtype=torch.uint8, device="cuda:1")
    before = totals(1)[0]
    record(context=context)
    y = torch.empty(30 * MB, dtype=torch.uint8, device="cuda:1")
    del x
    z = torch.empty(10 * MB, dtype=torch.uint8, device="cuda:1")  # from what is reserved
    del z
    torch.cuda.empty_cache()
    torch.cuda.empty_cache()  # which has nothing to give
    trace = snapshot()["device_traces"][1]
    parts = [entry for entry in trace if entry["action"].startswith("segment_")]
    assert [entry["action"] for entry in parts] == ["segment_alloc", "segment_free"]
    assert trace[0] is parts[0]  # before the tensor that needs it
    assert trace[-1] is parts[1]
    assert [entry["size"] for entry in parts] == [30 * MB, 12 * MB]
    assert before + 18 * MB == totals(1)[0]
    # Who has freed it is noted with all stacks only.
    assert ("empty_cache" in json.dumps(trace)) == (context == "all")
    assert bool(parts[0]["frames"]) == (context in ("alloc", "all"))
    assert "cudaFree(" in viz.trace(snapshot())
    assert y.is_cuda


def test_pages_of_expandable_segments_are_mapped_and_unmapped(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    record()
    x, y = (torch.empty(n * MB, dtype=torch.uint8, device="cuda:1") for n in (30, 50))
    del x
    z = torch.empty(35 * MB, dtype=torch.uint8, device="cuda:1")
    torch.cuda.empty_cache()
    found = snapshot()
    trace = found["device_traces"][1]
    parts = [entry for entry in trace if entry["action"].startswith("segment_")]
    pages = [(entry["action"], entry["size"] // MB) for entry in parts]
    # Pages of 20 MiB: of x there remains the one that y has begun.
    assert pages == [
        ("segment_map", 40), ("segment_map", 40), ("segment_map", 40), ("segment_unmap", 20),
    ]  # fmt: skip
    mine = [s for s in found["segments"] if s["device"] == 1 and s["is_expandable"]]
    assert sum(segment["total_size"] for segment in mine) == 100 * MB
    assert torch.cuda.memory_stats(1)["inactive_split.large_pool.current"] == 0
    assert y.is_cuda
    assert z.is_cuda


def test_out_of_memory_is_in_the_history_and_told():
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: told.append(numbers))
    record()
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 4096\.00 GiB"):
        torch.empty(2**42, dtype=torch.uint8, device="cuda:1")
    (entry,) = [e for e in snapshot()["device_traces"][1] if e["action"] == "oom"]
    assert entry["size"] == 2**42
    assert 0 < entry["device_free"] <= 15.78 * 2**30
    assert told == [(1, 2**42, torch.cuda.memory_allocated(1), entry["device_free"])]


def test_memory_is_page_locked_by_its_address():
    """As torch.distributed does with shared memory on the host, for copies of a state."""
    utils = pytest.importorskip("torch.distributed._state_dict_utils")
    state = {"x": torch.arange(1000.0, device="cuda")}
    begin_s = time.perf_counter()
    copy = utils._create_cpu_state_dict(state, pin_memory=True, share_memory=True)["x"]
    assert time.perf_counter() > begin_s
    assert copy.is_pinned()
    assert not torch.ones(1000).is_pinned()
    copy.copy_(state["x"], non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(copy, torch.arange(1000.0))
    torch.cuda._pin_memory_utils.unpin_memory(copy.data_ptr())
    assert not copy.is_pinned()
