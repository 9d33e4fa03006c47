"""Traces in the tools of others: Holistic Trace Analysis has the numbers that a timeline has."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import d2lpar as par
from d2lpar.timeline import Timeline
from d2lpar.vgpu.programs.watched.device_usage import UsageTimeline

needs_hta = pytest.mark.skipif(
    importlib.util.find_spec("hta") is None,
    reason='needs Holistic Trace Analysis: pip install ".[traces]"',
)
ANALYSE = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1])
kernels = found.get_gpu_kernel_breakdown(
    visualize=False, include_memory_kernels=True, num_kernels=99, duration_ratio=1.0)[1]
ranks = sorted(found.t.traces)
tables = {
    "temporal": found.get_temporal_breakdown(visualize=False),
    "overlap": found.get_comm_comp_overlap(visualize=False),
    "kernels": kernels,
    "idle": found.get_idle_time_breakdown(ranks=ranks, visualize=False)[0],
    "launches": found.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)[0],
}
tables = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
json.dump(tables, sys.stdout)
"""


def analysed(folder) -> dict[str, list[dict]]:
    """What the library finds in the traces of a folder: tables, times in µs."""
    variables = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}  # or it makes whole µs of all times
    done = subprocess.run(
        [sys.executable, "-c", ANALYSE, folder],
        env=variables, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def train() -> None:
    device = torch.device("vgpu", torch.distributed.get_rank())
    torch.manual_seed(0)
    layers = [nn.Linear(512, 512) for _ in range(6)]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        x = torch.ones(4096, 512).to(device)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.vgpu.synchronize(device)


@pytest.fixture(scope="module")
def data_parallel() -> Timeline:
    with par.simulate("2x-v100-textbook", 2) as gpus, par.record() as timeline:
        par.run_ranks(train, gpus)
    return timeline


def test_a_folder_has_a_file_a_rank(data_parallel, tmp_path):
    data_parallel.save_trace(tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run")) == ["rank_0.json", "rank_1.json"]
    parts = []
    for rank in range(2):
        path = tmp_path / "run" / f"rank_{rank}.json"
        content = json.loads(path.read_text())
        assert content["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 2}
        assert content["deviceProperties"] == [{"id": rank, "name": f"vgpu:{rank}"}]
        part = Timeline.from_chrome_trace(path)
        assert part.accelerators == [f"vgpu:{rank}"]
        assert {span.stream.split(",")[0] for span in part.on("host")} == {f"rank {rank}"}
        parts += [(s.device, s.stream, s.kind, s.name) for s in part]
    assert sorted(map(str, parts)) == sorted(
        str((s.device, s.stream, s.kind, s.name)) for s in data_parallel
    )


def fill_memory() -> None:
    device = torch.device("vgpu", torch.distributed.get_rank())
    held = torch.empty(2**20, device=device)  # takes memory before the device has work
    held.fill_(1)
    torch.distributed.barrier()


def test_memory_that_is_taken_before_any_work_is_its_ranks(tmp_path):
    with (
        par.simulate("2x-v100-textbook", 2) as gpus,
        par.record() as timeline,
        par.record(to=tmp_path / "run"),
    ):
        par.run_ranks(fill_memory, gpus)
    assert sorted(os.listdir(tmp_path / "run")) == ["rank_0.json", "rank_1.json"]
    for rank in range(2):
        part = Timeline.from_chrome_trace(tmp_path / "run" / f"rank_{rank}.json")
        expected = [sample for sample in timeline.memory if sample.device == f"vgpu:{rank}"]
        assert max(sample.bytes for sample in expected) == 2**22
        assert [sample.bytes for sample in part.memory] == [sample.bytes for sample in expected]


@needs_hta
def test_holistic_trace_analysis_finds_what_the_timeline_says(data_parallel, tmp_path):
    data_parallel.save_trace(tmp_path / "run")
    found = analysed(tmp_path / "run")
    for rank in range(2):
        device = f"vgpu:{rank}"
        own = data_parallel.where(lambda span, device=device: span.device == device)
        check_times(own, device, *(rows_of(found[name], rank) for name in ("temporal", "overlap")))
        check_kernels(own, rows_of(found["kernels"], rank))
        check_idle_streams(own, rows_of(found["idle"], rank))
    launches = {row["correlation"] for row in found["launches"]}
    assert launches == {span.correlation for span in data_parallel.on("vgpu:0")}


def rows_of(table: list[dict], rank: int) -> list[dict]:
    return [row for row in table if row["rank"] == rank]


def check_times(own: Timeline, device: str, temporal: list[dict], overlap: list[dict]) -> None:
    """Idle, computing, communicating, and how much of the latter is hidden."""
    (times,), (hidden,) = temporal, overlap
    exact = pytest.approx
    assert times["kernel_time(us)"] == exact(own.duration_s * 1e6, abs=2e-3)
    assert times["compute_time(us)"] == exact(own.on(device, "compute").busy_s * 1e6, abs=0.1)
    assert times["idle_time(us)"] == exact(own.idle_s(device) * 1e6, abs=0.1)
    exposed_s = own.exposed_communication_s(device)
    assert times["non_compute_time(us)"] == exact(exposed_s * 1e6, abs=0.1)
    collectives = own.on(device, "collective")
    share = collectives.overlap_s(own.on(device, "compute")) / collectives.busy_s
    assert hidden["comp_comm_overlap_pctg"] == exact(100 * share, abs=0.01)
    assert share > 0.05


def check_kernels(own: Timeline, kernels: list[dict]) -> None:
    """The seconds of each kernel, of each collective, and of all copies."""
    names = {"ncclDevKernel_AllReduce": "all_reduce", "ncclDevKernel_Broadcast": "broadcast"}
    sums = {names.get(row["name"], row["name"]): row["sum (us)"] for row in kernels}
    copies_us = sums.pop("Memcpy HtoD")
    expected = {row.group: row.total_s * 1e6 for row in own.summary("name")}
    expected_us = sum(expected.pop(name) for name in list(expected) if name.startswith("copy host"))
    assert copies_us == pytest.approx(expected_us, abs=0.01)
    assert sums == pytest.approx(expected, abs=0.5)


def check_idle_streams(own: Timeline, idle: list[dict]) -> None:
    """For how long each stream had nothing to do between its first and its last work."""
    for stream in {span.stream for span in own}:
        part = own.where(lambda span, stream=stream: span.stream == stream)
        found_us = sum(row["idle_time"] for row in idle if row["stream"] == stream)
        assert found_us == pytest.approx((part.duration_s - part.busy_s) * 1e6, abs=0.1)


@needs_hta
def test_it_sees_a_device_wait_for_its_host_where_d2lpar_does(gpus, tmp_path):
    with par.simulate("2x-v100-textbook", 1) as (device,), par.record() as timeline:
        x = torch.empty(2048, 2048, device=device)
        for _ in range(3):
            y = x @ x  # while it runs, the host queues on
            for _ in range(300):
                y = y[:8] + 1  # and is too slow for these
        torch.vgpu.synchronize(device)
    timeline.save_trace(tmp_path / "run")
    found = analysed(tmp_path / "run")["idle"]
    usage = UsageTimeline(timeline.clock, 0.0)
    for span in timeline:
        usage.add(span)
    usage.finish()
    own = usage.usage["vgpu:0"]
    waited_us = {row["idle_category"]: row["idle_time"] for row in found}
    first_s = timeline.on("vgpu:0").start_s  # the library begins with the first kernel
    # The library counts a gap if a call begins in it, d2lpar until the call has ended.
    waits_us = 1e6 * (own.waits_for_host_s - first_s)
    assert waited_us["host_wait"] == pytest.approx(waits_us, rel=0.01)
    assert waits_us > 1000
