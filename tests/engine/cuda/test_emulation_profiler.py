"""`torch.profiler` inside `emulate_cuda`: simulated times, of one process and of ranks."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.profiler import (
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)

import d2lpar as par
from d2lpar.timeline import Timeline
from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
CUDA = torch.autograd.DeviceType.CUDA


@pytest.fixture
def cuda():
    with par.emulate_cuda(2, verbose=False):
        yield


def product(n=512):
    return torch.ones(n, n, device="cuda") @ torch.ones(n, n, device="cuda")


def rows_of(profiler):
    return {row.key: row for row in profiler.key_averages()}


def test_tables_have_the_times_of_the_timeline(cuda):
    with par.record() as timeline, profile(activities=BOTH, with_flops=True) as profiler:
        for _ in range(3):
            product()
    kernels = timeline.on("cuda:0", "compute").where(lambda span: span.name == "mm")
    rows = rows_of(profiler)
    assert (rows["mm"].count, rows["aten::mm"].count) == (3, 3)
    total_us = kernels.busy_s * 1e6
    assert rows["mm"].self_device_time_total == pytest.approx(total_us)
    assert rows["aten::mm"].device_time_total == pytest.approx(total_us)
    queued = timeline.on("host", "dispatch").where(lambda span: span.name == "mm")
    assert rows["aten::mm"].self_cpu_time_total == pytest.approx(queued.busy_s * 1e6)
    assert rows["aten::mm"].flops == 3 * 2 * 512**3
    assert "Self CUDA" in profiler.key_averages().table(sort_by="cuda_time_total", row_limit=5)
    assert profiler.key_averages(group_by_input_shape=True, group_by_stack_n=2)


def test_what_the_processor_takes_to_compute_is_in_no_column(cuda):
    """Values of kernels are computed on it, at a speed that says nothing of a GPU."""
    with profile(activities=BOTH) as profiler:
        began_s = torch.cuda.Event(enable_timing=True)
        began_s.record()
        product(2048)
    events = profiler.events()
    end_us = max(event.time_range.end for event in events)
    kernel = next(event for event in events if event.name == "mm")
    assert kernel.time_range.end - kernel.time_range.start == pytest.approx(
        2 * 2048**3 / 14.13e12 * 1e6, rel=0.3  # the V100's rate for float32
    )  # fmt: skip
    assert end_us < 10e3


@pytest.mark.parametrize(("activity", "seen"), [("CPU", {False}), ("CUDA", {True})])
def test_only_wanted_activities_are_seen(cuda, activity, seen):
    with profile(activities=[getattr(ProfilerActivity, activity)]) as profiler:
        product()
    assert {event.device_type == CUDA for event in profiler.events()} == seen


def test_what_is_not_said_is_all_that_a_gpu_has(cuda):
    """As in torch with CUDA, where a profile records both unless it is told otherwise."""
    assert torch.profiler.supported_activities() == set(BOTH)
    with profile() as profiler:
        product()
    kernels = [event.name for event in profiler.events() if event.device_type == CUDA]
    assert kernels.count("mm") == 1


def test_blocks_of_the_program_hold_what_they_queue(cuda):
    net = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with profile(activities=BOTH) as profiler:
        with record_function("forward"):
            loss = net(torch.ones(8, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
    rows = rows_of(profiler)
    kernels = rows["addmm"].device_time_total + rows["sum"].device_time_total / 2
    assert rows["forward"].device_time_total > kernels * 0.9
    assert rows["forward"].cpu_time_total > rows["aten::addmm"].cpu_time_total
    assert rows["Optimizer.step#SGD.step"].device_time_total > 0
    assert rows["Optimizer.step#SGD.step"].self_cpu_time_total < 1


def test_a_trace_is_read_as_a_timeline(cuda, tmp_path):
    with profile(activities=BOTH, profile_memory=True) as profiler:
        with record_function("all of it"):
            product()
        profiler.add_metadata("run", 'the "first"')
    for _ in range(2):  # what torch refuses the second time
        profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["run"] == 'the "first"'
    seen = Timeline.from_chrome_trace(tmp_path / "trace.json")
    assert seen.clock.startswith("simulated on")
    assert [span.name for span in seen.on("cuda:0", "compute")] == ["fill_", "fill_", "mm"]
    assert seen.memory
    assert "all of it" in {span.name for span in seen.annotations}


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch's, of two cycles
def test_schedules_call_handlers_with_each_cycle(cuda, tmp_path):
    cycles = []

    def ready(profiler):
        names = [event.name for event in profiler.events()]
        cycles.append([name for name in names if name.startswith("ProfilerStep")])
        assert names.count("mm") == 2
        profiler.export_chrome_trace(str(tmp_path / f"{len(cycles)}.json.gz"))

    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=ready) as profiler:
        for _ in range(9):
            product()
            profiler.step()
    assert cycles == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]
    with gzip.open(tmp_path / "2.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]


def test_cycles_add_up_if_wanted(cuda):
    plan = schedule(wait=0, warmup=1, active=1, repeat=3)
    with profile(activities=BOTH, schedule=plan, acc_events=True) as profiler:
        for _ in range(6):
            product()
            profiler.step()
    assert rows_of(profiler)["mm"].count == 3


def small_step(device):
    x = torch.ones(2, 3, device=device)
    y = torch.addmm(torch.ones(4, device=device), x, torch.ones(3, 4, device=device), alpha=2)
    return torch.mul(y, y) + 1


SHAPES = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile
from test_emulation_profiler import shapes_of, small_step
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    small_step("cpu")
print(shapes_of(profiler))
"""


def shapes_of(profiler):
    names = {"aten::addmm", "aten::mul", "aten::add"}
    outer = [event for event in profiler.events() if not event.cpu_parent]
    return [(event.name, event.input_shapes) for event in outer if event.name in names]


def test_shapes_are_those_that_torch_notes_of_the_same_operations_on_the_processor(cuda):
    with profile(activities=BOTH, record_shapes=True) as profiler:
        small_step("cuda")
    folder = str(Path(__file__).parent)
    plain = subprocess.run(
        [sys.executable, "-c", SHAPES],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": folder},
    )  # fmt: skip
    assert str(shapes_of(profiler)) == plain.stdout.strip()
    rows = profiler.key_averages(group_by_input_shape=True)
    (found,) = (row.input_shapes for row in rows if row.key == "aten::addmm")
    assert found == [[4], [2, 3], [3, 4], [], []]


def test_a_trace_has_shapes_and_types_as_torchs_own_have(cuda, tmp_path):
    path = tmp_path / "trace.json"
    with profile(activities=BOTH, record_shapes=True) as profiler:
        torch.cat([torch.ones(2, 3, device="cuda"), torch.ones(1, 3, device="cuda")])
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    (arguments,) = (e["args"] for e in events if e["name"] == "cat" and e["cat"] == "cpu_op")
    assert arguments["Input Dims"] == [[[2, 3], [1, 3]], []]
    assert arguments["Input type"] == ["TensorList", "Scalar"]


def test_stacks_lead_from_the_line_of_the_program(cuda, tmp_path):
    importlib.import_module("torch._dynamo")  # which wraps what tensors call
    net = nn.Linear(256, 256).cuda()
    with profile(activities=BOTH, with_stack=True) as profiler:
        net(torch.ones(64, 256, device="cuda"))
    (event,) = (event for event in profiler.events() if event.name == "aten::addmm")
    assert event.stack[0].startswith("torch/nn/modules/linear.py(")
    here = [line for line in event.stack if "test_emulation_profiler" in line]
    assert "test_stacks_lead_from_the_line_of_the_program" in here[0]
    profiler.export_stacks(str(tmp_path / "stacks.txt"), "self_cuda_time_total")
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    assert [line for line in lines if "linear.py" in line and line.split(" ")[-1].isdigit()]


def test_memory_of_operations_adds_up_to_what_the_device_holds(cuda):
    kept = torch.ones(1024, device="cuda")
    before = torch.cuda.memory_allocated()
    with profile(activities=BOTH, profile_memory=True) as profiler:
        with record_function("block"):
            kept = kept + 1  # what it was bound to is freed then
            more = torch.zeros(4096, device="cuda")
        del more
        last = kept * 2
        empty = torch.empty(512, device="cuda")
        del kept
        after = torch.cuda.memory_allocated()
    rows = rows_of(profiler)
    assert rows["aten::add"].self_device_memory_usage == 4096
    assert rows["aten::mul"].device_memory_usage == last.nbytes
    assert rows["block"].device_memory_usage == 16384
    assert rows["block"].self_device_memory_usage == -4096
    assert rows["[memory]"].device_memory_usage == -16384 - 4096
    assert rows["aten::empty"].device_memory_usage == 16384 + empty.nbytes
    outer = [event for event in profiler.events() if not event.cpu_parent]
    assert sum(event.device_memory_usage for event in outer) == after - before
    assert "Self CUDA Mem" in profiler.key_averages().table(sort_by="self_cuda_memory_usage")


def test_without_being_asked_nothing_is_noted_of_operations(cuda):
    with profile(activities=BOTH) as profiler:
        product()
    (event,) = (event for event in profiler.events() if event.name == "aten::mm")
    assert (event.input_shapes, event.stack, event.device_memory_usage) == ([], [], 0)


def profile_collectives(rank, folder):
    x = torch.ones(4, 2, device="cuda")
    parts = [torch.empty_like(x) for _ in range(2)]
    with profile(activities=BOTH, record_shapes=True) as profiler:
        dist.all_reduce(x)
        dist.all_gather(parts, x)
        dist.all_gather_into_tensor(torch.empty(8, 2, device="cuda"), x)
        dist.barrier(device_ids=[rank])
    if rank == 0:
        found = [(event.name, event.input_shapes, event.is_async) for event in profiler.events()]
        Path(folder, "events.json").write_text(json.dumps(found))


def profile_memory(rank, folder):
    x = torch.ones(1024 * (1 + rank), device="cuda")
    before = torch.cuda.memory_allocated()
    with profile(activities=BOTH, profile_memory=True, with_stack=True) as profiler:
        y = x + 1
        dist.all_reduce(torch.ones(256, device="cuda"))
        del x
        z = y * 2
        after = torch.cuda.memory_allocated()
    assert z.sum() == 4 * z.numel()
    outer = [event for event in profiler.events() if not event.cpu_parent]
    (add,) = (event for event in outer if event.name == "aten::add")
    names = [frame.rpartition(" ")[2] for frame in add.stack]
    found = [sum(e.device_memory_usage for e in outer), add.device_memory_usage, names]
    Path(folder, f"{rank}.json").write_text(json.dumps([after - before, *found]))


def train(rank, folder):
    net = DDP(nn.Linear(64, 64).cuda(), device_ids=[rank])
    handler = tensorboard_trace_handler(folder, worker_name=f"rank{rank}")
    plan = schedule(wait=1, warmup=1, active=2)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=handler) as profiler:
        for _ in range(4):
            for _ in range(1 + rank):  # ranks are told apart by their work
                torch.ones(4, device="cuda").exp()
            net(torch.ones(8, 64, device="cuda")).sum().backward()
            profiler.step()
    rows = rows_of(profiler)
    assert rows["exp"].count == 2 * (1 + rank)
    assert rows["ncclDevKernel_AllReduce"].count == 2
    assert {e.device_index for e in profiler.events() if e.device_type == CUDA} == {rank}


def profile_all(rank, folder):
    """To start processes takes longer than all that they do."""
    torch.cuda.set_device(rank)
    with profile(on_trace_ready=tensorboard_trace_handler(os.path.join(folder, "of_workers"))):
        product()  # in no group yet
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=2)
    for profiled in (profile_collectives, profile_memory, train):
        profiled(rank, folder)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Where two ranks have left what they saw."""
    folder = tmp_path_factory.mktemp("profiled")
    with pytest.MonkeyPatch.context() as monkeypatch, par.emulate_cuda(2, verbose=False):
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        monkeypatch.setenv("MASTER_PORT", "29511")
        multiprocessing.spawn(profile_all, (str(folder),), nprocs=2)
    return folder


def test_collectives_are_listed_as_c10d_does(profiled):
    """Its operator, and in it an event that is asynchronous, as work may end on another thread."""
    found = json.loads((profiled / "events.json").read_text())
    assert [name for name, *_ in found if name.startswith("c10d::")] == [
        "c10d::allreduce_", "c10d::allgather_", "c10d::_allgather_base_", "c10d::barrier",
    ]  # fmt: skip
    assert [each for each in found if each[0].startswith("nccl:")][:3] == [
        ["nccl:all_reduce", [[4, 2]], True],
        ["nccl:all_gather", [[4, 2]], True],
        ["nccl:_all_gather_base", [[4, 2]], True],
    ]


def test_each_rank_is_a_worker_of_its_own_for_tensorboard(profiled):
    traces = (profiled / "of_workers").iterdir()
    assert len({path.name.partition(".")[0] for path in traces}) == 2


def test_each_rank_counts_the_memory_of_its_own_device(profiled):
    for rank in range(2):
        found = json.loads((profiled / f"{rank}.json").read_text())
        changed, total, of_addition, names = found
        assert changed == total == 4096 * (1 + rank)
        assert of_addition == 4096 * (1 + rank)
        assert "profile_memory" in names


def test_each_rank_has_a_profile_of_its_own(profiled):
    for rank in range(2):
        (path,) = profiled.glob(f"rank{rank}.*.pt.trace.json")
        info = json.loads(path.read_text())["distributedInfo"]
        assert (info["rank"], info["world_size"], info["backend"]) == (rank, 2, "nccl")
        assert info["pg_config"][0]["backend_config"] == "cuda:nccl"
        seen = Timeline.from_chrome_trace(path)
        assert seen.accelerators == [f"cuda:{rank}"]
        assert len(seen.where(lambda span: span.name == "exp").on(f"cuda:{rank}")) == 2 * (1 + rank)


def fail_beside_a_collective(rank):
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=2)
    with profile(activities=BOTH):
        dist.all_reduce(torch.ones(1, device=f"cuda:{rank}"), async_op=rank == 1)
        if rank == 1:
            dist.all_reduce(torch.ones(1, device="cuda:1"), async_op=True)
            raise ValueError("this one")


def test_an_error_of_a_rank_is_told_and_not_what_follows_from_it(cuda, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29512")
    with pytest.raises(Exception, match="this one"):
        multiprocessing.spawn(fail_beside_a_collective, nprocs=2)


def test_a_profile_changes_no_time_but_for_its_end(cuda):
    def steps():
        net = nn.Linear(64, 64).cuda()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            with record_function("step"):
                net(torch.ones(8, 64, device="cuda")).sum().backward()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    torch.cuda.synchronize()
    alone = steps()
    torch.cuda.synchronize()
    with profile(activities=BOTH):
        profiled = steps()
    assert profiled == pytest.approx(alone, rel=1e-9)


def test_a_profile_that_nobody_has_ended_ends_with_the_block():
    rt = current_runtime()
    with par.emulate_cuda(1, verbose=False):
        profile(activities=BOTH, record_shapes=True).start()
        product()
        assert rt.op_details.wanted
    assert not rt.op_details.wanted
    assert not rt.clock.timelines


def test_a_second_profile_at_once_is_an_error_and_one_after_the_other_is_none(cuda):
    with profile(), pytest.raises(RuntimeError, match="runs already"), profile():
        pass
    with profile() as profiler:
        product()
    assert profiler.events()


def test_a_timeline_of_memory_is_refused(cuda, tmp_path):
    with profile(profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        nn.Linear(2, 2).cuda()
    with pytest.raises(NotImplementedError, match="_record_memory_history"):
        profiler.export_memory_timeline(str(tmp_path / "memory.html"))


def test_it_says_once_that_times_are_simulated(cuda, capsys):
    for _ in range(2):
        with profile():
            product()
    assert capsys.readouterr().err.count("all times are simulated") == 1


def test_outside_torch_measures_as_before():
    with par.emulate_cuda(1, verbose=False):
        pass
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(4) + 1
    assert "aten::add" in rows_of(profiler)
