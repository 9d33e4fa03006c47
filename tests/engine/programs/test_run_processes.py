"""Processes of a program under `d2lpar run`: what each has of its own, and what they share."""

import pytest
import running

from d2lpar.command import cli


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a program's text in a folder of its own; gives its status, lines and stderr."""
    monkeypatch.chdir(tmp_path)

    def command(source, *words):
        (tmp_path / "program.py").write_text(source)
        named = [] if "program.py" in words else ["program.py"]
        found = running.run("--quiet", *words, *named)
        return found.status, found.lines, found.err

    return command


def test_the_file_of_the_main_module_is_absolute_and_its_argument_as_given(run, tmp_path):
    status, lines, err = run("import sys\nprint(__file__, sys.argv[0])")
    assert (status, err) == (0, "")
    assert lines == [f"{tmp_path / 'program.py'} program.py"]


SHARED = """
import torch
import torch.multiprocessing as mp

def count(rank, total):
    torch.cuda.set_device(0)
    total += rank + 1
    print(rank, torch.cuda.current_device(), torch.cuda.device_count())

if __name__ == "__main__":
    total = torch.zeros(2, device="cuda")
    mp.spawn(count, (total,), nprocs=2)
    print(total.tolist())
"""


def test_more_processes_than_gpus_share_them(run):
    status, lines, err = run(SHARED)
    assert (status, err) == (0, "")
    assert lines[-1:] == ["[3.0, 3.0]"]
    assert sorted(lines[:-1]) == ["0 0 1", "1 0 1"]


HOGWILD = """
import torch
import torch.multiprocessing as mp

def train(rank, model, kept):
    model.weight.grad = torch.full_like(model.weight, rank + 1.0)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    kept.zero_()

if __name__ == "__main__":
    model, kept = torch.nn.Linear(2, 1, bias=False).cuda(), torch.ones(1, requires_grad=True)
    before = model.weight.detach().clone()
    mp.spawn(train, (model.share_memory(), kept.detach()), nprocs=2)
    print(type(model.weight) is not torch.Tensor, model.weight.grad, kept.item())
    print((before - model.weight).round(decimals=4).tolist())
"""


def test_processes_train_one_model_in_the_memory_that_they_share(run):
    status, lines, err = run(HOGWILD)
    assert (status, err) == (0, "")
    assert lines == ["True None 0.0", "[[3.0, 3.0]]"]


LOADERS = """
import torch, torch.multiprocessing as mp
from torch.utils.data import DataLoader

def load():
    print(sum(batch.sum().item() for batch in DataLoader(range(6), 2, num_workers=1)))

if __name__ == "__main__":
    child = mp.get_context("spawn").Process(target=load)
    child.start()
    child.join()
"""


def test_processes_have_loaders_with_workers(run):
    assert run(LOADERS) == (0, ["15"], "")


LOADER_AFTER_CUDA = """
import torch
from torch.utils.data import DataLoader

net = torch.nn.Linear(1, 1).cuda()
loader = DataLoader(torch.arange(6.0).view(6, 1), 2, num_workers=1, pin_memory=True)
print(sum(net(batch.cuda(non_blocking=True)).shape[0] for batch in loader))
"""


@pytest.mark.parametrize("options", [["--gpus", "1"], ["--nproc-per-node", "2"]])
def test_loaders_have_workers_after_cuda_has_started(run, options):
    status, lines, err = run(LOADER_AFTER_CUDA, *options)
    assert (status, err) == (0, "")
    assert set(lines) == {"6"}


EXCHANGE = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def sum_up(rank, device):
    dist.init_process_group("gloo", init_method="tcp://localhost:29501", rank=rank, world_size=3)
    part = torch.full((2,), rank + 1.0, device=device)
    dist.barrier()
    dist.all_reduce(part)
    if rank == 1:
        dist.send(part, 2)
    if rank == 2:
        dist.recv(part, 1)
        print(part.tolist())

if __name__ == "__main__":
    mp.start_processes(sum_up, ("DEVICE",), nprocs=3, start_method="fork")
"""


def test_processes_that_share_a_gpu_exchange_what_is_on_the_host(run):
    status, lines, err = run(EXCHANGE.replace("DEVICE", "cpu"))
    assert (status, lines, err) == (0, ["[6.0, 6.0]"], "")


def test_processes_that_share_a_gpu_cannot_send_what_is_on_it(run):
    status, _, err = run(EXCHANGE.replace("DEVICE", "cuda"))
    assert status == 1
    assert "tensors on cuda:0, only those of the host" in err


TRAIN_TOGETHER = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

def train(rank):
    dist.init_process_group("gloo", init_method="tcp://localhost:29501", rank=rank, world_size=2)
    torch.manual_seed(rank)
    net = DDP(torch.nn.Linear(1, 1, bias=False).cuda(), device_ids=[0])
    before = net.module.weight.item()
    net(torch.full((1, 1), rank + 1.0, device="cuda")).sum().backward()
    mine, parts = torch.full((1,), float(rank), device="cuda"), [None, None]
    parts = [torch.empty_like(mine) for _ in parts]
    dist.all_gather(parts, mine)
    print(before == net.module.weight.item(), net.module.weight.grad.item(), parts[1].item())

if __name__ == "__main__":
    mp.start_processes(train, nprocs=2, start_method="fork")
"""


def test_processes_that_share_a_gpu_train_over_gloo(run):
    assert run(TRAIN_TOGETHER) == (0, ["True 1.5 1.0"] * 2, "")


MEMORY = """
import torch
import torch.multiprocessing as mp

def show():
    print(torch.cuda.memory_allocated(0), torch.cuda.max_memory_allocated(0))

def hold(rank, size):
    show()
    held = torch.ones(size, device="cuda:0")
    show()

if __name__ == "__main__":
    parents = torch.ones(512, device="cuda:0")
    mp.spawn(hold, (10240,), nprocs=1)
    show()
"""


def test_a_process_counts_the_memory_that_it_has_itself(run):
    status, lines, err = run(MEMORY)
    assert (status, err) == (0, "")
    assert lines == ["0 0", "40960 40960", "2048 2048"]


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder where all processes find modules."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    return folder


STARTS_ITSELF = """
import os, subprocess, sys
from torch import distributed

def launch(ranks):
    global rank
    rank = int(os.environ.get("LOCAL_RANK", 0))
    if "WORLD_SIZE" not in os.environ:
        size = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        for other in range(1, ranks):
            words = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
            subprocess.Popen(words, env={**os.environ, **size, "LOCAL_RANK": str(other)})
        os.environ.update(size, LOCAL_RANK="0")
    distributed.init_process_group("nccl", rank=rank, world_size=ranks)
"""
LAUNCHES = """
import sys, torch, torch.distributed as dist, trainer

trainer.launch(2)
x = torch.full((1,), dist.get_rank() + 1.0, device=torch.device("cuda", dist.get_rank()))
dist.all_reduce(x)
print(dist.get_rank(), x.item(), sys.argv[1:])
"""


@pytest.mark.parametrize("gpus", [2, 3])
def test_a_program_that_a_library_starts_as_further_ranks(run, packages, gpus):
    (packages / "trainer.py").write_text(STARTS_ITSELF)
    status, lines, err = run(LAUNCHES, "--gpus", gpus, "program.py", "--lr=1")
    assert (status, err) == (0, "")
    assert sorted(lines) == ["0 3.0 ['--lr=1']", "1 3.0 ['--lr=1']"]


@pytest.mark.parametrize("launcher", ["srun", "/usr/bin/mpirun"])
def test_other_launchers_than_torchruns_are_refused(capfd, launcher):
    assert cli.main(["run", launcher, "-n", "2", "python", "x.py"]) == 2
    assert f"{launcher}: ranks are started as torchrun does" in capfd.readouterr().err


WITHOUT_AN_ADDRESS = """
import torch.distributed as dist
import torch.multiprocessing as mp

def meet(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)

if __name__ == "__main__":
    mp.start_processes(meet, nprocs=2, start_method="fork")
"""


def test_who_spawns_processes_is_told_to_set_the_address(run, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    status, _, err = run(WITHOUT_AN_ADDRESS)
    assert status == 1
    assert "MASTER_ADDR=localhost MASTER_PORT=29500 d2lpar run" in err
    assert "--nproc-per-node" not in err


NEEDS_A_RANK = """
import os

rank = int(os.environ["RANK"])
"""


def test_a_script_for_torchrun_that_is_run_alone_is_told_how_to_start_it(run):
    status, _, err = run(NEEDS_A_RANK)
    assert status
    assert "KeyError: 'RANK'" in err
    assert "torchrun sets this variable" in err
    assert "d2lpar run --nproc-per-node" in err


def test_another_missing_variable_is_not_taken_for_one_of_torchruns(run):
    status, _, err = run(NEEDS_A_RANK.replace("RANK", "MY_FOLDER"))
    assert status
    assert "KeyError: 'MY_FOLDER'" in err
    assert "torchrun" not in err


TAKES_LOCAL_RANK = """
import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, {})
parser.add_argument("--name", default="")
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group("nccl")
x = torch.ones(3, device=torch.device("cuda", args.local_rank))
dist.all_reduce(x)
if args.name == "fails":
    raise ValueError("a bad batch")
"""
BY_LAUNCH = "d2lpar run -m torch.distributed.launch --nproc-per-node 2 program.py --name 'a b'"


@pytest.mark.parametrize("option", ["default=-1", "default=0", "required=True"])
def test_a_script_that_takes_local_rank_is_told_what_gives_it(run, option):
    source = TAKES_LOCAL_RANK.replace("{}", option)
    words = ["program.py", "--name", "a b"]
    status, _, err = run(source, "--nproc-per-node", 2, *words)
    assert status
    assert f"`{BY_LAUNCH}`" in err
    status, _, err = run(source, "-m", "torch.distributed.launch", "--nproc-per-node", 2, *words)
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("default", "words", "message"),
    [
        ("0", ["--name", "fails"], "a bad batch"),
        (
            "int(__import__('os').environ['LOCAL_RANK'])",
            ["--wrong"],
            "unrecognized arguments: --wrong",
        ),
        ("0", ["--local_rank=7"], "there is no cuda:7"),
    ],
)
def test_other_failures_of_such_a_script_are_not_put_down_to_it(run, default, words, message):
    source = TAKES_LOCAL_RANK.replace("{}", f"default={default}")
    status, _, err = run(source, "--nproc-per-node", 1, "program.py", *words)
    assert status
    assert message in err
    assert "torch.distributed.launch" not in err


ASKS_THE_DRIVER = """
import pynvml

def busy():
    pynvml.nvmlInit()

busy()
"""


def test_a_program_that_asks_the_driver_is_told_what_to_ask(run, tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception):\n    pass\n\n\n"
        "def nvmlInit():\n    raise NVMLError('NVML Shared Library Not Found')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    status, _, err = run(ASKS_THE_DRIVER)
    assert status == 1
    assert "NVML Shared Library Not Found" in err
    assert "torch.cuda.mem_get_info()" in err


ATTENTION_OF_DTENSORS = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

dist.init_process_group()
torch.cuda.set_device(dist.get_rank())
mesh = init_device_mesh("cuda", (2,))
x = torch.ones(1, 4, 8, 16, device="cuda", dtype=torch.bfloat16)
x = DTensor.from_local(x, mesh, [Shard(1)])
F.scaled_dot_product_attention(x, x, x, is_causal=True)
"""


def test_attention_of_dtensors_without_a_fused_kernel_names_a_machine_that_has_one(run):
    status, _, err = run(ATTENTION_OF_DTENSORS, "--nproc-per-node", 2)
    assert status == 1
    assert "got mixed torch.Tensor and DTensor" in err
    assert "--machine 8x-a100-nvswitch" in err
    machine = ["--machine", "8x-a100-nvswitch"]
    assert run(ATTENTION_OF_DTENSORS, *machine, "--nproc-per-node", 2)[0] == 0


def test_other_mixtures_with_dtensors_are_told_nothing_of_attention(run):
    last = "F.scaled_dot_product_attention(x, x, x, is_causal=True)"
    program = ATTENTION_OF_DTENSORS.replace(last, "x + x.to_local()")
    status, _, err = run(program, "--nproc-per-node", 2)
    assert status == 1
    assert "got mixed torch.Tensor and DTensor" in err
    assert "8x-a100" not in err


SMALLER_GROUP = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def live(rank):
    torch.cuda.set_device(rank)
    if rank == 2:  # it does something else
        return
    address = "tcp://localhost:29500"
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2)
    x = torch.full((1,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    new = dist.new_group()
    dist.all_reduce(x, group=new)
    try:
        dist.new_group([0, 2])
    except ValueError as error:
        print(x.item(), dist.get_world_size(), dist.get_world_size(new), error)

if __name__ == "__main__":
    mp.start_processes(live, nprocs=3, start_method="fork")
"""


def test_a_group_may_be_smaller_than_the_processes_that_were_started(run):
    status, lines, err = run(SMALLER_GROUP, "--gpus", 3)
    assert (status, err) == (0, "")
    assert lines == ["6.0 2 2 Rank 2 is out of range: a group has ranks from 0 to 1"] * 2


def test_a_group_may_be_of_other_processes_than_the_first(run):
    program = SMALLER_GROUP.replace("rank == 2", "rank == 0").replace("rank=rank", "rank=rank - 1")
    status, lines, err = run(program, "--gpus", 3)
    assert (status, err) == (0, "")
    assert lines == ["10.0 2 2 Rank 2 is out of range: a group has ranks from 0 to 1"] * 2


def test_a_program_alone_that_wants_a_group_is_told_how_to_start_it(run):
    program = "import torch.distributed as dist\n" + (
        "dist.init_process_group('gloo', 'tcp://localhost:29500', rank=0, world_size=2)"
    )
    status, _, err = run(program)
    assert status
    assert "d2lpar run --nproc-per-node 2 SCRIPT" in err


FAILING = """
import torch
import torch.multiprocessing as mp

def mix(rank):
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("not there") from error

def add(rank):
    return torch.ones(2, device="cuda") + torch.ones(3, device="cuda")

if __name__ == "__main__":
    process = mp.get_context("spawn").Process(target=add, args=(0,))
    process.start()
    process.join()
    try:
        mp.spawn(mix, nprocs=1)
    except mp.ProcessRaisedException as error:
        print(error)
"""


def test_tracebacks_of_processes_show_the_programs_lines(run):
    status, lines, err = run(FAILING)
    assert status == 0
    assert "in add" in err
    for told in ("in mix", "KeyError: 'missing'", "direct cause"):
        assert told in "\n".join(lines)


ENDS = """
import atexit, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def tell(text):
    rank = dist.is_initialized() and dist.get_rank()
    held = [torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())]
    print(text, rank, any(held))

def child(i):
    dist.init_process_group("nccl", init_method="tcp://localhost:29502", rank=i, world_size=2)
    atexit.register(tell, "ended")
    atexit.register(print, "never")
    atexit.unregister(print)
    kept.append(torch.ones(2, device=f"cuda:{i}"))

kept = []
if __name__ == "__main__":
    if sys.argv[1] != "torchrun":
        mp.start_processes(child, nprocs=2, start_method=sys.argv[1])
    else:
        atexit.register(dist.destroy_process_group)
        dist.init_process_group("nccl")
        kept.append(torch.ones(2, device="cuda"))
        atexit.register(tell, "ended")
        atexit.register(lambda: kept[1])
        sys.exit(3 * dist.get_rank())
"""


def test_processes_call_at_their_end_what_they_have_registered(run):
    words = ["--nproc-per-node", 2, "program.py", "torchrun"]
    status, lines, err = run(ENDS, *words)
    assert (status, sorted(lines)) == (3, ["ended 0 True", "ended 1 True"])
    assert err.count("Exception ignored in atexit callback: <function <lambda>") == 2
    assert err.count("IndexError: list index out of range") == 2


@pytest.mark.parametrize(("method", "called"), [("spawn", True), ("fork", False)])
def test_forked_processes_call_nothing_at_their_end(run, method, called):
    status, lines, err = run(ENDS, "--gpus", 2, "program.py", method)
    assert (status, err) == (0, "")
    assert sorted(lines) == (["ended 0 True", "ended 1 True"] if called else [])


@pytest.mark.parametrize("name", ["mpi", "MPI"])
def test_mpi_is_refused_for_what_it_is(run, name):
    source = f"import torch.distributed as dist\ndist.init_process_group('{name}')"
    status, _, err = run(source, "--nproc-per-node", 2)
    assert status == 1
    assert "Distributed package doesn't have MPI built in" in err
    assert "torchrun" not in err


PROFILED = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
    dist.init_process_group("nccl", rank=number, world_size=2)
    torch.cuda.set_device(number)
    x = torch.ones(1000, device="cuda")
    with torch.autograd.profiler.profile(use_device="cuda") as profile:
        dist.all_reduce(x)
    names = [event.name for event in profile.function_events]
    sys.stdout.write(f"{names.count('nccl:all_reduce')} {names.count('c10d::allreduce_')}\\n")

if __name__ == "__main__":
    mp.start_processes(rank, nprocs=2, start_method="fork")
"""


def test_a_profile_lists_what_its_own_process_did(run):
    status, lines, _ = run(PROFILED, "--gpus", "2")
    assert status == 0
    assert lines == ["1 1", "1 1"]
