"""Measured runs as timelines: real ones of torch.profiler on the CPU, and CUDA traces by hand.

No trace of a real GPU was at hand. `cuda_trace` follows Kineto's source (output_json.cpp,
CuptiActivity.cpp): its categories, names, arguments, flows, and what else stands in its files.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import d2lpar as par
from d2lpar.timeline import MemorySample, Timeline

BASE_US = 4409890292908.626
MAIN, BACKWARD = 7568, 7601


def slices(category, tid, *events, pid=7568):
    """Events (name, start, end, args) in microseconds as Kineto writes them."""
    return [
        {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
         "ts": BASE_US + start, "dur": end - start, "args": args}
        for name, start, end, args in events
    ]  # fmt: skip


def launch(correlation):
    return {"cbid": 211, "correlation": correlation, "External id": 1}


def on_gpu(correlation, stream, **more):
    return {"device": 0, "context": 1, "stream": stream, "correlation": correlation, **more}


def allocated(start, kind, device, total):
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7568,
        "tid": MAIN, "ts": BASE_US + start,
        "args": {"Total Reserved": 2**21, "Total Allocated": total, "Bytes": 512,
                 "Device Id": device, "Device Type": kind, "Addr": 94277118327616},
    }  # fmt: skip


def cuda_trace() -> dict:
    """A blocking copy, a linear layer, its gradient on autograd's thread, an all-reduce, a copy."""
    copied = on_gpu(19, 7, bytes=10**6, fromDevice=0, inDevice=0, toDevice=1)
    del copied["device"]
    events = [
        {"ph": "M", "name": "process_name", "ts": BASE_US, "pid": 7568, "tid": 0,
         "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "ts": BASE_US, "pid": 0, "tid": 0,
         "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "ts": BASE_US, "pid": 0, "tid": 7,
         "args": {"name": "stream 7 "}},
        *slices(
            "cpu_op", MAIN,
            ("aten::copy_", 0, 30, {"External id": 1}),
            ("aten::linear", 40, 60, {"External id": 2}), ("aten::addmm", 42, 58, {}),
            ("aten::empty", 62, 64, {"External id": 4}),
            ("aten::zero_", 132, 140, {"External id": 5}),
        ),
        *slices(
            "cuda_runtime", MAIN,
            ("cudaMemcpyAsync", 5, 9, launch(11)), ("cudaStreamSynchronize", 10, 28, launch(12)),
            ("cudaLaunchKernel", 45, 50, launch(13)),
            ("cudaDeviceSynchronize", 70, 130, launch(15)),
            ("cudaMemsetAsync", 133, 137, launch(16)),
        ),
        *slices("cuda_driver", MAIN, ("cuLaunchKernel", 52, 56, launch(14))),
        *slices(
            "cpu_op", BACKWARD,
            ("autograd::engine::evaluate_function: AddmmBackward0", 66, 90, {}),
            ("AddmmBackward0", 67, 89, {}), ("aten::mm", 68, 88, {}),
            ("aten::copy_", 97, 105, {}),
        ),
        *slices(
            "cuda_runtime", BACKWARD,
            ("cudaLaunchKernel", 70, 75, launch(17)), ("cudaLaunchKernelExC", 92, 96, launch(18)),
            ("cudaMemcpyAsync", 98, 103, launch(19)),
        ),
        *slices(
            "gpu_memcpy", 7,
            ("Memcpy HtoD (Pageable -> Device)", 9, 27, on_gpu(11, 7, bytes=4096)),
            ("Memcpy PtoP (Device -> Device)", 126, 129, copied),
            ("Memcpy DtoH (Device -> Pinned)", 150, 151, on_gpu(99, 7, bytes=4)),
            pid=0,
        ),
        *slices(
            "kernel", 7,
            ("ampere_sgemm_128x64_tn", 55, 100, on_gpu(13, 7, grid=[8, 1, 1])),
            ("void at::native::elementwise_kernel<128, 4>", 100, 110, on_gpu(14, 7)),
            ("ampere_sgemm_32x32_nt", 110, 120, on_gpu(17, 7)), pid=0,
        ),
        *slices(
            "kernel", 20, ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 97, 125, on_gpu(18, 20)),
            pid=0,
        ),
        *slices(
            "gpu_memset", 7, ("Memset (Device)", 141, 143, on_gpu(16, 7, bytes=64)), pid=0,
        ),
        *slices("user_annotation", MAIN, ("step", -5, 200, {})),
        *slices("gpu_user_annotation", 7, ("step", 9, 143, {}), pid=0),
        *slices("python_function", MAIN, ("train.py(3): step", -4, 199, {})),
        *slices(
            "cuda_sync", -1, ("Context Sync", 70, 130, {"cuda_sync_kind": "Context Sync"}), pid=0,
        ),
        {"ph": "s", "id": 13, "pid": 7568, "tid": MAIN, "ts": BASE_US + 45, "cat": "ac2g",
         "name": "ac2g"},
        {"ph": "f", "id": 13, "pid": 0, "tid": 7, "ts": BASE_US + 55, "cat": "ac2g",
         "name": "ac2g", "bp": "e"},
        allocated(3, 1, 0, 1024), allocated(62.5, 0, -1, 2048), allocated(63, 17, 0, 1),
        {"ph": "X", "cat": "Trace", "ts": BASE_US, "dur": 200, "pid": "Spans",
         "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
        {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces",
         "tid": "Trace PyTorch Profiler", "ts": BASE_US},
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 42}],
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1790857026000000000,
        "traceEvents": events,
    }


@pytest.fixture
def cuda_run() -> Timeline:
    return Timeline.from_chrome_trace(cuda_trace())


def told(timeline, *attributes):
    """The spans' attributes, times in microseconds."""
    us = {"start_us": "start_s", "end_us": "end_s"}
    return [
        tuple(
            round(getattr(span, us[a]) * 1e6) if a in us else getattr(span, a) for a in attributes
        )
        for span in timeline
    ]


def test_the_host_dispatches_works_and_waits(cuda_run):
    main = cuda_run.where(lambda s: (s.device, s.stream) == ("host", "main"))
    assert told(main, "kind", "name", "start_us", "end_us") == [
        ("dispatch", "copy_", 0, 10), ("wait", "cudaStreamSynchronize", 10, 28),
        ("host", "copy_", 28, 30), ("dispatch", "linear", 40, 60), ("host", "empty", 62, 64),
        ("wait", "cudaDeviceSynchronize", 70, 130), ("dispatch", "zero_", 132, 140),
    ]  # fmt: skip
    other = cuda_run.where(lambda s: (s.device, s.stream) == ("host", "thread 1"))
    assert told(other, "kind", "name", "start_us", "end_us") == [
        ("dispatch", "AddmmBackward0", 66, 90), ("dispatch", "cudaLaunchKernelExC", 92, 96),
        ("dispatch", "copy_", 97, 105),
    ]  # fmt: skip


def test_the_device_computes_copies_and_reduces(cuda_run):
    assert cuda_run.devices == ["host", "cuda:0"]
    assert told(cuda_run.on("cuda:0"), "stream", "kind", "start_us", "end_us", "bytes") == [
        (7, "copy", 9, 27, 4096), (7, "compute", 55, 100, 0), (20, "collective", 97, 125, 0),
        (7, "compute", 100, 110, 0), (7, "compute", 110, 120, 0), (7, "copy", 126, 129, 10**6),
        (7, "compute", 141, 143, 64), (7, "copy", 150, 151, 4),
    ]  # fmt: skip
    targets = [span.target for span in cuda_run.on("cuda:0", "copy")]
    assert targets == ["cuda:0", "cuda:1", "host"]


def test_what_an_operation_queued_is_joined_with_it(cuda_run):
    names = {}
    for span in cuda_run:
        if span.correlation and span.device == "host":
            names[span.correlation] = span.name
    queued_by = [names.get(span.correlation) for span in cuda_run.on("cuda:0")]
    assert queued_by == [
        "copy_", "linear", "cudaLaunchKernelExC", "linear", "AddmmBackward0", "copy_", "zero_",
        None,
    ]  # fmt: skip


def test_memory_is_sampled_for_devices_that_are_known(cuda_run):
    assert cuda_run.memory == [
        MemorySample("cuda:0", pytest.approx(3e-6), 1024),
        MemorySample("host", pytest.approx(62.5e-6, abs=1e-9), 2048),
    ]


def test_it_is_analysed_like_any_other(cuda_run, tmp_path):
    assert cuda_run.clock == "measured"
    assert cuda_run.exposed_communication_s("cuda:0") == pytest.approx(27e-6)  # 9-27, 120-125, …
    assert cuda_run.on("host", "wait").busy_s == pytest.approx(78e-6)
    chain = cuda_run.where(lambda s: s.end_s <= 130.1e-6).critical_path()
    assert [span.name for span in chain][-3:] == [
        "ampere_sgemm_32x32_nt", "Memcpy PtoP (Device -> Device)", "cudaDeviceSynchronize",
    ]  # fmt: skip
    cuda_run.save_trace(tmp_path / "again.json")
    again = Timeline.from_chrome_trace(tmp_path / "again.json")
    assert [s.name for s in again] == [s.name for s in cuda_run]


def test_an_empty_profile_is_an_empty_timeline():
    trace = {**cuda_trace(), "traceEvents": []}
    assert Timeline.from_chrome_trace(trace) == Timeline("measured")


# Real runs on the CPU


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch 2.10, at each start
def test_a_real_profile_becomes_host_work(tmp_path):
    layer, x = torch.nn.Linear(16, 4), torch.rand(8, 16)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        layer(x).relu().sum().backward()
    averages = {row.key: row for row in profiler.key_averages()}
    timeline = Timeline.from_profiler(profiler)
    names = [span.name for span in timeline]
    assert names[:4] == ["linear", "relu", "sum", "ones_like"]
    assert {"AddmmBackward0", "ReluBackward0", "SumBackward0"} <= set(names)
    assert {(s.device, s.kind, s.stream) for s in timeline} == {("host", "host", "main")}
    linear_s = averages["aten::linear"].cpu_time_total / 1e6
    assert timeline.spans[0].duration_s == pytest.approx(linear_s, abs=1e-8)
    assert timeline.start_s == 0
    starts = [span.start_s for span in timeline]
    assert starts == sorted(starts)
    with pytest.raises(ValueError, match="exports its trace once only"):
        Timeline.from_profiler(profiler)


def test_recording_the_cpu_measures_it():
    with par.record("cpu") as timeline:
        x = torch.rand(300, 300)
        (x @ x).sum().item()
        assert not timeline.spans
    assert timeline.clock == "measured"
    assert [span.name for span in timeline] == ["rand", "matmul", "sum", "item"]
    ends = [0.0, *[span.end_s for span in timeline]]
    assert all(s.start_s >= end for s, end in zip(timeline, ends, strict=False))
    chain = timeline.critical_path()
    assert [span.name for span in chain] == ["rand", "matmul", "sum", "item"]


def test_a_measured_recording_survives_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), par.record("cpu", to=tmp_path / "r.json") as t:
        torch.ones(3).add(1).size(0) / 0
    assert t.dropped.count == 2
    written = Timeline.from_chrome_trace(tmp_path / "r.json")
    assert [span.name for span in written] == ["ones", "add"]
    assert json.loads((tmp_path / "r.json").read_text())["otherData"]["clock"] == "measured"


def test_without_virtual_devices_recording_is_silent_and_measures():
    code = """
import torch, d2lpar as par
with par.record() as timeline:
    torch.ones(3) + 1
print(timeline.clock, [s.name for s in timeline])
"""
    env = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3], env=env,
    )  # fmt: skip
    assert (found.stdout.strip(), found.stderr) == ("measured ['ones', 'add']", "")
