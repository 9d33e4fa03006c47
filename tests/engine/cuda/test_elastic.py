"""Ranks that a program starts by torch's own agent, as `accelerate launch` does."""

import ast
import sys

import pytest
import running
import warm_process

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def total(*terms):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    x = torch.tensor([float(sum(terms)) + dist.get_rank()], device="cuda")
    dist.all_reduce(x)
    return x.item(), torch.cuda.current_device(), dist.get_world_size()

def fails_until(count):
    held = torch.ones(1000, device="cuda")
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < count:
        raise KeyError("a shard that is not there yet")
    return torch.cuda.memory_allocated()

def config(machines, restarts):
    here = {"rdzv_endpoint": "localhost:0", "rdzv_backend": "c10d", "max_restarts": restarts}
    return LaunchConfig(1, machines, 2, **here)

if __name__ == "__main__":
    if sys.argv[1] == "functions":
        print(elastic_launch(config(int(sys.argv[3]), 0), total)(10, 20))
    elif sys.argv[1] == "restarts":
        print(elastic_launch(config(1, 1), fails_until)(1))
        try:
            elastic_launch(config(1, 1), fails_until)(2)
        except ChildFailedError as error:
            print(error.name, "a shard that is not there yet" in str(error), [*error.failures])
            raise
    elif sys.argv[1] == "scripts":
        run.main(["--nproc-per-node", "2", "program.py", "a rank", "7"])
    else:
        print(sys.argv[1:], total(int(sys.argv[2])))
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the program with these words; gives its status, lines and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "program.py").write_text(PROGRAM)

    def command(*words):
        found = running.run("--quiet", "--gpus", 3, *words)
        return found.status, found.lines, found.err

    return command


def test_functions_are_ranks_and_give_their_results(run):
    status, lines, err = run("program.py", "functions", "--nodes", "1")
    assert status == 0, err
    assert lines == ["{0: (61.0, 0, 2), 1: (61.0, 1, 2)}"]


def test_scripts_are_ranks_with_their_own_arguments(run):
    status, lines, err = run("program.py", "scripts")
    assert status == 0, err
    assert sorted(lines) == ["['a rank', '7'] (15.0, 0, 2)", "['a rank', '7'] (15.0, 1, 2)"]


def test_ranks_start_again_as_often_as_the_agent_may_start_them(run):
    status, lines, err = run("program.py", "restarts")
    first, second = lines
    assert ast.literal_eval(first) == dict.fromkeys(range(2), 4096)  # what others held is free
    assert second.startswith("fails_until True ")
    assert status
    assert "KeyError: 'a shard that is not there yet'" in err
    assert "failed at program.py:" in err


def test_a_command_that_python_packages_install_is_found_as_a_shell_does(
    run, monkeypatch, tmp_path
):
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "a-command-of-a-package"
    command.write_text(f"#!{sys.executable}\nimport sys, torch\nprint(sys.argv[1:])\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert run("a-command-of-a-package", "launch") == (0, ["['launch']"], "")
    other = folder / "a-binary"
    other.write_bytes(b"\x7fELF")
    other.chmod(0o755)
    status, _, err = run("a-binary")
    assert status
    assert "there is no file 'a-binary' to run" in err


FRAMEWORK = """
import subprocess, sys

def start(*words):
    process = subprocess.Popen([sys.executable, "-u", *words], env={"ONLY": "this"})
    return process.wait(), process.poll(), isinstance(process, subprocess.Popen)

def run(*words):
    return subprocess.run([sys.executable, *words]).returncode
"""
STARTED = """
import os, sys, torch
print(__name__, sys.argv[1:], "ONLY" in os.environ, torch.cuda.device_count(), flush=True)
torch.ones(2, device="cuda:1").sum().item()
if "fail" in sys.argv:
    sys.exit(3)
"""
STARTS = """
import os
from accelerate import start, run
print(start("started.py", "7"), "ONLY" in os.environ, flush=True)
print(run("-m", "started", "again") == 0, run("started.py", "fail") != 0, flush=True)
print(run("-c", "print('a process', flush=True)"), flush=True)
"""


def test_programs_that_a_framework_starts_have_the_gpus(run, monkeypatch, tmp_path):
    """`accelerate launch` starts one process so."""
    package = tmp_path / "accelerate"  # one of those that start a program's processes
    package.mkdir()
    (package / "__init__.py").write_text(FRAMEWORK)
    (tmp_path / "started.py").write_text(STARTED)
    (tmp_path / "program.py").write_text(STARTS)
    status, lines, _ = run("program.py")
    assert status == 0
    assert lines == [
        "__main__ ['7'] True 3",
        "(0, 0, True) False",
        "__main__ ['again'] False 3",
        "__main__ ['fail'] False 3",
        "True True",
        "a process",
        "0",
    ]


IN_A_BLOCK = """
import os, torch, torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import d2lpar as par

def total():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    x = torch.ones(1, device="cuda") * dist.get_rank()
    dist.all_reduce(x)
    return x.item(), torch.cuda.current_device()

with par.emulate_cuda(3, verbose=False):
    ways = {"rdzv_endpoint": "localhost:0", "rdzv_backend": "c10d", "start_method": "fork"}
    print(elastic_launch(LaunchConfig(1, 1, 3, max_restarts=0, **ways), total)())
"""


def test_a_block_may_start_ranks_by_fork_as_a_notebook_does():
    """So does accelerate's `notebook_launcher`."""
    ran = warm_process.run(IN_A_BLOCK)
    assert ran.returncode == 0, ran.stderr
    results = ast.literal_eval(ran.stdout.splitlines()[-1])
    assert results == {rank: (3.0, rank) for rank in range(3)}
