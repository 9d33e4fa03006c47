"""`d2lpar run`: programs as they stand, started in every way, and what the command says of them."""

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import running
import torch
from torch.distributed import run as torchrun

import d2lpar as par
from d2lpar.timeline import Timeline
from d2lpar.vgpu.programs import left_out, limits, report
from d2lpar.vgpu.programs.launch_plan import Asked, plan

PROGRAMS = Path(__file__).parents[2] / "programs"


@pytest.fixture
def run():
    """Runs the command; gives its status, the program's lines, and what it wrote on stderr."""
    return running.run


def test_one_process_sees_all_gpus(run):
    found = run("--gpus", 3, PROGRAMS / "one_gpu.py", "--steps", 5)
    assert found.status == 0
    assert found.lines[0].startswith("cuda of 3: ['--steps', '5'] ")
    assert "5 steps, " in found.out
    table, _, _ = found.out.partition("not in these times")
    assert [line.split()[0] for line in table.splitlines() if line.strip().startswith("cuda:")] == [
        f"cuda:{i}" for i in range(3)
    ]


def test_the_devices_that_the_shell_makes_visible_are_numbered_anew(run, monkeypatch, tmp_path):
    program = tmp_path / "visible.py"
    program.write_text(
        "import torch\n"
        "x = torch.ones(500, 500, device='cuda:1')\n"
        "print(torch.cuda.device_count(), (x @ x).device, flush=True)\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    found = run("--gpus", 3, program)
    assert (found.status, found.lines[0]) == (0, "2 cuda:1")
    rows = [line.split() for line in found.lines if line.startswith("cuda:")]
    busy = {row[0]: row[1] for row in rows}
    assert busy["cuda:1"] == "0.0%"
    assert busy["cuda:2"] != "0.0%"


def test_what_finds_modules_for_a_program_goes_with_it(run, tmp_path):
    program = tmp_path / "empty.py"
    program.write_text("import json\n")
    before = list(sys.meta_path)
    for ranks in (1, 2):
        assert run("--nproc-per-node", ranks, program).status == 0
    assert sys.meta_path == before


def test_data_parallel_sees_the_visible_devices_by_their_numbers(run, tmp_path):
    """The backward pass of `gather` asked tensors for their number, and got that of all devices."""
    program = tmp_path / "visible_parallel.py"
    program.write_text(
        "import os\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '3,2'\n"
        "import torch\n"
        "net = torch.nn.DataParallel(torch.nn.Linear(2, 1, device='cuda'))\n"
        "y = net(torch.ones(4, 2).cuda())\n"
        "y.sum().backward()\n"
        "torch.accelerator.set_device_index(1)\n"
        "print(y.get_device(), torch.empty(1, device='cuda').get_device(),\n"
        "      torch.accelerator.current_device_index(),\n"
        "      net.module.weight.grad.tolist(), flush=True)\n"
    )
    found = run("--gpus", 4, program)
    assert (found.status, found.lines[0]) == (0, "0 1 1 [[4.0, 4.0]]")


def test_streams_and_checkpoints_have_the_numbers_of_visible_devices(run, tmp_path):
    """A checkpoint named its device by the number of all: such a program could not load it."""
    program = tmp_path / "visible_streams.py"
    program.write_text(
        "import os\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '3,2'\n"
        "import torch\n"
        "x = torch.ones(2, device='cuda:1')\n"
        "stream = torch.cuda.Stream('cuda:1')\n"
        "key = (stream.stream_id, stream.device_index, stream.device_type)\n"
        "same = torch.cuda.Stream(stream_id=key[0], device_index=key[1], device_type=key[2])\n"
        "torch._C._cuda_setStream(*key)\n"
        "print(key[1], same == stream, torch.cuda.current_stream() == stream, flush=True)\n"
        "x.record_stream(torch.cuda.default_stream(1))\n"
        f"torch.save(x, {str(tmp_path / 'x.pt')!r})\n"
        f"print(torch.load({str(tmp_path / 'x.pt')!r}).device, torch.get_device(x), flush=True)\n"
    )
    found = run("--gpus", 4, program)
    assert (found.status, found.lines[:2]) == (0, ["1 True True", "cuda:1 1"])


def test_the_first_visible_device_is_current_on_each_thread(run, tmp_path):
    program = tmp_path / "visible_threads.py"
    program.write_text(
        "import os, threading\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '3,1'\n"
        "import torch\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        "x = torch.ones(2, device='cuda')\n"
        "def look():\n"
        "    print(torch.cuda.current_device(), torch.empty(1, device='cuda').device, flush=True)\n"
        "look()\n"
        "thread = threading.Thread(target=look)\n"
        "thread.start()\n"
        "thread.join()\n"
        "with profile(activities=[ProfilerActivity.CUDA]) as profiled:\n"
        "    x + 1\n"
        "print([(event.name, event.device_index) for event in profiled.events()], flush=True)\n"
        "try:\n"
        "    x + torch.ones(2, device='cuda:1')\n"
        "except RuntimeError as error:\n"
        "    print(error, flush=True)\n"
    )
    found = run("--gpus", 4, program)
    assert (found.status, found.lines[:3]) == (0, ["0 cuda:0", "0 cuda:0", "[('add', 0)]"])
    assert "at least two devices, cuda:0 and cuda:1!" in found.lines[3]


def test_a_program_that_uses_no_gpu_is_told_so_in_place_of_a_table_of_zeros(run, tmp_path):
    others = [torch.ones(3, device=par.devices(2, verbose=False)[1])]
    program = tmp_path / "host_only.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(3)\n"
        "dist.all_reduce(x)\n"
        "print(x.tolist(), flush=True)\n"
    )
    found = run("torchrun", "--nproc-per-node", 2, program)
    assert (found.status, found.lines[:2]) == (0, ["[2.0, 2.0, 2.0]"] * 2)
    assert found.lines[-1].startswith("no GPU was used")
    assert "cuda:0" not in found.out
    others.clear()  # were there all the time


def test_what_it_computes_is_what_the_processor_computes(run, monkeypatch):
    on_gpu = run(PROGRAMS / "one_gpu.py").lines[0]
    monkeypatch.setattr("sys.argv", ["one_gpu.py"])
    import runpy

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runpy.run_path(str(PROGRAMS / "one_gpu.py"), run_name="__main__")
    assert on_gpu.startswith("cuda of 1: []")


def test_steps_are_those_of_the_model_that_is_trained_longest(run, tmp_path):
    script = tmp_path / "trials.py"
    script.write_text(
        "import torch\n"
        "for steps in 2, 5, 1:\n"
        "    net = torch.nn.Linear(3, 1).cuda()\n"
        "    trainer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "    for _ in range(steps):\n"
        "        net(torch.ones(2, 3, device='cuda')).sum().backward()\n"
        "        trainer.step()\n"
        "    del trainer\n"  # the next may be where this one was
    )
    assert "5 steps, " in run(script).out


@pytest.mark.parametrize("policy", ["", ", offload_policy=CPUOffloadPolicy(pin_memory=False)"])
def test_steps_of_sharded_parameters_are_counted(run, tmp_path, policy):
    script = tmp_path / "sharded.py"
    script.write_text(
        "import os, torch\n"
        "from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "torch.distributed.init_process_group()\n"
        f"net = fully_shard(torch.nn.Linear(4, 2){policy})\n"
        "trainer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    net(torch.ones(2, 4, device='cuda')).sum().backward()\n"
        "    trainer.step()\n"
    )
    assert "\n3 steps, " in run("--nproc-per-node", 2, script).out


def test_what_is_trained_on_the_processor_has_no_steps(run, tmp_path):
    script = tmp_path / "host.py"
    script.write_text(
        "import torch\n"
        "net = torch.nn.Linear(4, 2)\n"
        "trainer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    net(torch.ones(2, 4)).sum().backward()\n"
        "    trainer.step()\n"
    )
    assert " steps, " not in run(script).out


RANKS = [f"rank {r} {r} 2 2 0 29500 {r} cuda:{r} 2" for r in range(2)]


@pytest.mark.parametrize(
    "words",
    [
        ("--nproc-per-node", 2),
        ("--gpus", 2, "torchrun", "--nproc-per-node", "gpu"),
        ("--gpus", 2, "torchrun", "--standalone", "--nproc_per_node=2"),
        ("python", "-m", "torch.distributed.run", "--nproc-per-node", 2),
        ("-m", "torch.distributed.launch", "--nproc_per_node", 2),
    ],
)
def test_ranks_as_torchrun_and_launch_start_them(run, words):
    found = run(*words, PROGRAMS / "ddp_torchrun.py")
    assert found.err == ""
    assert found.status == 0
    assert found.lines[:2] == RANKS
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ranks_on_two_machines_have_local_devices(run):
    found = run("torchrun", "--nnodes", 2, "--nproc-per-node", 2, PROGRAMS / "ddp_torchrun.py")
    assert found.err == ""
    assert found.lines[:4] == [
        f"rank {r} {r % 2} 4 2 {r // 2} 29500 {r % 2} cuda:{r % 2} 2" for r in range(4)
    ]


@pytest.mark.parametrize("how", ["spawn", "process", "class"])
def test_processes_that_a_program_starts(run, how):
    found = run("--gpus", 2, PROGRAMS / "ddp_spawn.py", how)
    assert found.err == ""
    # A process that is spawned imports the main module anew; one that is forked has a copy.
    told = "by the module" if how == "spawn" else "by the main program"
    assert found.lines[:2] == [f"{how} {r} {r} {told} 1.0 cuda:{r}" for r in range(2)]


def test_a_package_by_its_name_with_state_in_a_module(run, monkeypatch):
    monkeypatch.chdir(PROGRAMS)
    found = run("--nproc-per-node", 4, "-m", "megatron_like", "x")
    assert found.err == ""
    assert found.lines[:4] == [
        f"{r} {2.0 + 2 * (r % 2)} 3 rank {r} megatron_like" for r in range(4)
    ]
    assert not any(name.startswith("megatron_like") for name in sys.modules)


def test_a_rank_that_fails_is_named_with_its_line(run):
    program = PROGRAMS / "ddp_torchrun.py"
    found = run("--nproc-per-node", 2, program, "--fails", 1)
    assert found.status == 1
    number = 1 + program.read_text().splitlines().index('        raise ValueError("a bad batch")')
    first, line, error = found.err.splitlines()
    assert first.startswith("d2lpar: rank 1 of 2 failed at ")
    assert first.endswith(f"ddp_torchrun.py:{number}, in main:")
    assert (line.strip(), error) == ('raise ValueError("a bad batch")', "ValueError: a bad batch")
    in_full = run("--nproc-per-node", 2, "--traceback", program, "--fails", 1)
    assert "Traceback (most recent call last)" in in_full.err


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("import sys; sys.exit(7)", 7, "the program ended with exit status 7"),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit('no data')", 1, "no data"),
        ("import torch.distributed as d\nd.init_process_group('nccl')", 1, "--nproc-per-node N"),
        ("1 / 0", 1, "script.py:1"),
        ("import torch\ntorch.ones(1, device='cuda:1')", 1, "no cuda:1"),
    ],
)
def test_exit_statuses(run, tmp_path, source, status, message):
    script = tmp_path / "script.py"
    script.write_text(source)
    found = run(script)
    assert found.status == status
    assert message in found.err


def test_the_report_says_what_its_schema_says(run, tmp_path):
    files = tmp_path / "run.json", tmp_path / "trace.json"
    program = PROGRAMS / "one_gpu.py"
    run("--gpus", 2, "--hazards", "--report", files[0], "--timeline", files[1], program)
    found = json.loads(files[0].read_text())
    assert set(found) == {field.name for field in fields(report.RunReport)} - {*report.PICTURES}
    described = report.__doc__
    for name in [*found, *found["devices"][0], *(found["syncs"][0])]:
        assert f"`{name}`" in described
    assert (found["status"], found["error"], found["hazards"]) == (0, None, [])
    assert (found["steps"], found["gpus"], found["ranks"]) == (4, 2, 1)
    assert 0 < found["ms_per_step"] * 1e-3 < found["simulated_s"]
    device = found["devices"][0]
    parts = ("busy_s", "exposed_communication_s", "waiting_for_host_s", "waiting_for_others_s")
    whole = sum(device[name] for name in (*parts, "idle_s"))
    assert whole == pytest.approx(found["simulated_s"], rel=1e-6)
    timeline = Timeline.from_chrome_trace(files[1])
    assert timeline.on("cuda:0", "compute").busy_s == pytest.approx(device["busy_s"], rel=1e-3)
    assert device["peak_memory_bytes"] >= 4 * (64 * 64 + 64)
    assert found["syncs"][0]["place"].startswith("one_gpu.py:")


TALKS = """import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(2**20, device="cuda")
for _ in range(4):
    dist.all_reduce(x)
print(x[:4].tolist())
"""


def test_nodes_of_a_cluster_are_those_of_the_program(run, tmp_path):
    """Two ranks of each of two nodes were put into the first node, whose links are fast."""
    program, report = tmp_path / "talks.py", tmp_path / "run.json"
    program.write_text(TALKS)

    def seconds(machine):
        options = ("--nnodes", 2, "--nproc-per-node", 2, "--machine", machine, "--report", report)
        assert run(*options, program).status == 0
        return json.loads(report.read_text())["simulated_s"]

    across = seconds("2x8x-p100-dgx1-25gbe")
    assert across == pytest.approx(seconds("2x2x-p100-dgx1-25gbe"))
    assert across > 4 * seconds("4x-p100-dgx1")


def test_the_summary_says_what_is_simulated_otherwise(run, tmp_path):
    program = tmp_path / "talks.py"
    program.write_text(TALKS)
    found = run("--nnodes", 2, "--nproc-per-node", 2, "--shapes-only", program)
    assert "no network: all 4 GPUs are in 2x-v100-textbook, as if it had so many" in found.out
    assert "so what the program read 4 times is NaN" in found.out
    rows = [line.split("  ")[0] for line in found.lines if line.startswith("node ")]
    assert rows == ["node 0 cuda:0", "node 0 cuda:1", "node 1 cuda:0", "node 1 cuda:1"]
    assert "a device (on all 4 ranks): 4, most at\n  talks.py:7: tolist" in found.out
    found = run("--nproc-per-node", 4, program)
    assert "2x-v100-textbook has 2 GPUs: simulated with 4\n" in found.out
    assert "NaN" not in found.out
    assert "no network" not in found.out


LOADS = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), sum(range(300_000)))

for batch in DataLoader(Slow(), batch_size=2, num_workers=int(sys.argv[1])):
    batch.cuda().sum()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaders_time_is_said_as_it_is_in_no_other(run, tmp_path, workers):
    program, file = tmp_path / "loads.py", tmp_path / "run.json"
    program.write_text(LOADS)
    text = run("--gpus", 1, "--report", file, program, workers).out
    found = json.loads(file.read_text())
    assert found["loader_workers"] == workers
    assert found["loader_s"] > 2 * found["simulated_s"] > 0
    assert "the loader" in text
    assert "GPUs would wait for it" in text


def test_a_bound_is_what_one_rank_waits_for():
    half = left_out.left_out(8.0, 2, 2, 3.0)
    assert "2 s by 2 workers" in half
    assert "wait" not in half  # for 3 s the GPUs are busy
    assert "4 s by 1 worker" in left_out.left_out(8.0, 1, 2, 3.0)
    assert "loader" not in left_out.left_out(0.0, 0, 1, 3.0)


def test_the_same_wait_of_several_devices_is_one_line(run, tmp_path):
    program = tmp_path / "copies.py"
    program.write_text(
        "import torch\nx = torch.ones(2**18)\nparts = [x.to(f'cuda:{i}') for i in range(3)]\n"
    )
    found = run("--gpus", 3, program)
    assert "\n  copies.py:3: copy host to cuda, 3 times, " in found.out
    assert found.out.count("copies.py:3:") == 1


def test_what_is_left_of_an_earlier_program_hides_no_peak(run, tmp_path):
    """Garbage that is collected while the program runs was counted as if it had been there."""
    program, report = tmp_path / "program.py", tmp_path / "run.json"
    program.write_text(
        "import gc, torch\ngc.collect()\nx = torch.ones(2**20, device='cuda')\ny = x + x\n"
    )
    gc.disable()
    try:
        with par.emulate_cuda(1, verbose=False):
            left = [torch.ones(2**22, device="cuda")]
            left.append(left)
        del left
        assert run("--gpus", 1, "--report", report, program).status == 0
    finally:
        gc.enable()
    assert json.loads(report.read_text())["devices"][0]["peak_memory_bytes"] == 2 * 4 * 2**20


@pytest.mark.parametrize(
    ("options", "bits", "message"),
    [
        (("--max-ms-per-step", 1000, "--max-memory", "1GB", "--no-hazards"), 0, ""),
        (("--max-ms-per-step", 0.001), 1, "--max-ms-per-step 0.001: a step takes"),
        (("--max-memory", "1KiB"), 2, "--max-memory 1.02 kB: tensors on cuda:0 took"),
        (("--no-syncs",), 8, "--no-syncs: "),
        (("--no-syncs", "--max-memory", "1kB"), 10, "--max-memory"),
    ],
)
def test_a_broken_limit_has_a_status_of_its_own(run, options, bits, message):
    found = run(*options, PROGRAMS / "one_gpu.py")
    assert found.status == (16 + bits if bits else 0)
    assert message in found.err


def test_a_hazard_breaks_its_limit(run, tmp_path):
    script = tmp_path / "races.py"
    script.write_text(
        "import torch\nside = torch.cuda.Stream()\nx = torch.ones(1000, device='cuda')\n"
        "with torch.cuda.stream(side):\n    x.mul_(2)\n"
    )
    found = run("--no-hazards", script)
    assert found.status == 20
    assert "races.py:5" in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no program is named"),
        (("--gpus", 2, "--nproc-per-node", 4, "x.py"), "--nproc-per-node 4 needs 4 GPUs"),
        (("--gpus", 3, "--nnodes", 2, "x.py"), "cannot be shared evenly"),
        (("x.py",), "there is no file 'x.py' to run"),
        (("--max-memory", "much", "x.py"), "'much' is no size"),
        (("--machine", "8xa100", PROGRAMS / "one_gpu.py"), "no machine is called '8xa100'"),
        (("--nproc-per-node", "few", "x.py"), "few"),
    ],
)
def test_mistakes(run, words, message):
    found = run(*words)
    assert found.status == 2
    assert message in found.err


def test_sizes():
    assert limits.size("16GB") == 16 * 10**9
    assert limits.size("1.5 GiB") == 3 * 2**29
    assert limits.size("80000") == 80000


def test_a_tool_is_found_where_a_shell_or_this_python_has_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "trainer"
    tool.write_text("#!/usr/bin/env python\n")
    tool.chmod(0o755)
    assert plan(Asked(words=["trainer", "launch"])).target == "trainer"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert plan(Asked(words=["trainer", "launch"])).target == str(tool)


def test_a_module_is_told_from_a_script():
    launch = plan(Asked(words=["x.py", "-m", "3"]))
    assert (launch.target, launch.arguments, launch.is_module) == ("x.py", ("-m", "3"), False)
    launch = plan(Asked(words=["-m", "pack.age", "--lr", "1"], per_node="3"))
    assert (launch.target, launch.arguments, launch.is_module) == ("pack.age", ("--lr", "1"), True)
    assert (launch.gpus, launch.world_size) == (3, 3)


WORDS = [
    ["program.py", "--", "--x"],
    ["-m", "program", "--", "--x"],
    ["program.py", "--", "--", "1"],
    ["program.py", "1", "--", "--x"],
    ["--", "program.py", "--x"],
    ["-m", "program", "--gpus", "2", "-m", "--"],
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_program_has_the_arguments_that_python_gives_it(run, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv[1:])")
    command = [sys.executable, *words]
    real = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = run("--quiet", *words)
    assert (found.status, found.out) == (0, real)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_ranks_have_the_arguments_that_torchrun_gives_them(run, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv[1:])")
    told = torchrun.parse_args(words)
    found = run("--quiet", "--nproc-per-node", 1, *words)
    assert (found.status, found.out) == (0, f"{told.training_script_args}\n")


def test_ranks_that_wait_in_vain_are_named_with_their_lines(run, tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "if os.environ['RANK'] == '0':\n    dist.barrier(device_ids=[0])\n"
    )
    found = run("--nproc-per-node", 2, script)
    assert found.status == 1
    assert (
        "rank 0 waits in barrier() of the group of ranks 0, 1 for rank 1, at waits.py:4"
        in found.err
    )


@pytest.mark.parametrize("children", [False, True])
def test_an_interrupt_ends_all_and_leaves_nothing(run, tmp_path, interrupts, children):
    script = tmp_path / "endless.py"
    script.write_text(
        "import os, signal, sys, threading, torch.multiprocessing as mp\n"
        "def loop(rank, pid):\n"
        "    if rank == 0:\n"
        "        threading.Timer(0.2, os.kill, (pid, signal.SIGINT)).start()\n"
        "    while True: sum(range(1000))\n"
        "if __name__ == '__main__':\n"
        "    pid = os.getppid()\n"
        "    mp.spawn(loop, (pid,), nprocs=2) if sys.argv[1:] else loop(0, pid)\n"
    )
    found = run("--gpus", 2, script, *["x"] * children)
    assert found.status == 130
    assert "d2lpar: interrupted\nthe program was interrupted at" in found.err


# Trains until a signal comes, and then saves; `how` says how it hears of it.
SAVES = """
import atexit, os, signal, sys, threading, time, torch, torch.distributed as dist
how, number = sys.argv[1], getattr(signal, sys.argv[2])
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
x, asked, stop = torch.ones(2, device="cuda"), False, False
atexit.register(print, f"atexit {rank}")
def flag(got, frame):
    global asked
    asked = got == number
if how == "handler":
    signal.signal(number, flag)
if how == "exit":
    signal.signal(number, lambda *_: sys.exit(7))
if rank == ranks - 1:
    threading.Timer(0.5, os.kill, (os.getppid(), number)).start()
try:
    while not stop:
        x = x + 0
        gathered = [asked] * ranks
        if ranks > 1:
            dist.all_gather_object(gathered, asked)
        stop = any(gathered)
        time.sleep(0.01)
    torch.save(x, f"{rank}.pt")
except KeyboardInterrupt:
    torch.save(x, f"{rank}.pt")
finally:
    print(f"finally {rank}")
"""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("how", "signal_name", "status"),
    [("except", "SIGINT", 0), ("handler", "SIGTERM", 0), ("handler", "SIGINT", 0),
     ("exit", "SIGUSR1", 7)],
)  # fmt: skip
def test_a_program_has_its_say_at_a_signal(
    run, tmp_path, monkeypatch, interrupts, ranks, how, signal_name, status
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saves.py").write_text(SAVES)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    found = run("--quiet", "--nproc-per-node", ranks, "saves.py", how, signal_name)
    assert found.status == status
    for rank in range(ranks):
        assert [f"finally {rank}", f"atexit {rank}"] == [
            line for line in found.lines if line.endswith(f" {rank}")
        ]
        assert (tmp_path / f"{rank}.pt").exists() == (how != "exit")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_program_that_a_signal_ends_has_failed_by_it(run, tmp_path, monkeypatch, ranks):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saves.py").write_text(SAVES)
    found = run("--nproc-per-node", ranks, "saves.py", "nothing", "SIGTERM")
    assert found.status == 128 + signal.SIGTERM
    assert "was ended by SIGTERM" in found.err
    assert "0 bytes" not in found.out  # nobody has said what there was


IGNORES = {
    "swallowed": """
while True:
    try:
        while True: x = x + 0; time.sleep(0.01)
    except BaseException: pass
""",
    "ignored": """
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True: x = x + 0; time.sleep(0.01)
""",
}


@pytest.mark.parametrize("how", IGNORES)
def test_a_second_interrupt_ends_who_ignores_the_first(tmp_path, how):
    script = tmp_path / "ignores.py"
    # More than two, as signals that come while the machine is busy count as one. It goes on while
    # the interpreter ends, which takes the names of modules away.
    sends = (
        "def send(sleep=time.sleep, kill=os.kill, pid=pid):\n"
        "    while True: sleep(1); kill(pid, 2)\n"
        "sends = threading.Thread(target=send, daemon=True)"
    )
    script.write_text(
        "import os, signal, threading, time, torch\nx = torch.ones(2, device='cuda')\n"
        f"pid = os.getppid()\n{sends}\nsends.start()\n{IGNORES[how]}"
    )
    ended = subprocess.run(
        [sys.executable, "-c", "import signal; signal.signal(2, signal.default_int_handler); "
         "from d2lpar.command.cli import entry; entry()", "run", "--quiet", script],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 130
    assert ended.stderr.endswith("d2lpar: interrupted\n")


ENDS_ODDLY = {
    "del": (
        "class Holder:\n"
        "    def __del__(self): print('sum', torch.ones(3, device='cuda').sum().item())\n"
        "held = Holder()", 0, "sum 3.0", "",
    ),
    "fork": (
        "import sys\n"
        "for status in (0, 4):\n"
        "    pid = os.fork()\n"
        "    if not pid: sys.exit(status)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n", 0, "0\n4", "",
    ),
    "forked child fails": (
        "pid = os.fork()\n"
        "if not pid: raise ValueError('of the child')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n", 0, "1", "of the child",
    ),
    "folder gone": (
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\nraise ValueError('mine')",
        1, "", "ValueError: mine",
    ),
    "no text": (
        "class Bad(Exception):\n    def __str__(self): 1 / 0\n    __repr__ = __str__\nraise Bad(1)",
        1, "", "raise Bad(1)\nBad: <exception str() failed>",
    ),
}  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("what", ENDS_ODDLY)
def test_programs_that_end_oddly_end_as_under_python(tmp_path, monkeypatch, what):
    source, status, out, err = ENDS_ODDLY[what]
    (tmp_path / "odd.py").write_text(f"import os, torch\n{source}")
    monkeypatch.chdir(tmp_path)
    ended = running.run("--quiet", "odd.py")
    assert (ended.status, ended.out.strip()) == (status, out), ended.err
    assert err in ended.err


@pytest.mark.parametrize(("options", "status"), [((), 0), (["--shapes-only"], 3)])
def test_who_fails_by_values_that_are_not_computed_is_told(run, tmp_path, options, status):
    script = tmp_path / "careful.py"
    script.write_text(
        "import math, sys, torch\n"
        "loss = torch.ones(2, device='cuda').sum().item()\n"
        "sys.exit(0 if math.isfinite(loss) else 3)\n"
    )
    found = run(*options, script)
    assert found.status == status
    assert ("run it with values" in found.err) == bool(status)


@pytest.mark.parametrize("reads", [True, False])
def test_who_fails_by_something_else_is_not_told(run, tmp_path, reads):
    script = tmp_path / "full.py"
    last = "torch.ones(2**40, device='cuda')" if reads else "1 / 0"
    script.write_text(f"import torch\ntorch.ones(2, device='cuda'){'.tolist()' * reads}\n{last}\n")
    found = run("--shapes-only", script)
    assert found.status == 1
    assert "run it with values" not in found.err


def test_full_size_takes_no_arithmetic(run):
    """A product whose time is the datasheet's at most: A100, 312 TFLOP/s are for bfloat16."""
    found = run(
        *("--shapes-only", "--machine", "8x-a100-nvswitch", "--max-memory", "2GB"),
        *(PROGRAMS / "one_gpu.py", "--size", 16384),
    )
    assert found.status == 16 + 2  # parameters, gradients: 1 GiB each, and more
    assert "simulated on 8x-a100-nvswitch" in found.out


@pytest.fixture
def no_programs(tmp_path):
    """A folder, and files that are no text."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "library.so").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(20))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "is a folder"),
        ("library.so", "is a binary file"),
        ("picture.png", "is a binary file"),
        ("missing.py", "there is no file"),
    ],
)
@pytest.mark.parametrize("before", [[], ["--nproc-per-node=2"]], ids=["alone", "ranks"])
def test_what_is_no_program_is_refused_before_torch_is_imported(no_programs, before, name, message):
    words = ["run", *before, str(no_programs / name)]
    code = (
        "import sys\nfrom d2lpar.command import cli\n"
        f"print(cli.main({words!r}), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(PROGRAMS.parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2", "False"]
    assert message in done.stderr
    assert name in done.stderr


def test_a_folder_that_python_runs_is_run(tmp_path):
    (tmp_path / "__main__.py").write_text("")
    plan(Asked(words=[str(tmp_path)])).require_program()


@pytest.mark.parametrize("option", ["--shapes-only", "--shape-only"])
def test_both_spellings_compute_no_values(run, tmp_path, option):
    script = tmp_path / "value.py"
    script.write_text("import torch\nprint(torch.ones(2, device='cuda').sum().item())\n")
    assert run(option, "--quiet", script).lines == ["nan"]
