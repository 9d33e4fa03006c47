"""Who am I: torchrun's variables, Slurm's, none; and the errors of people who start ranks."""

import os
import socket
import sys

import pytest
import torch
import torch.distributed as dist
from slurm_programs import install

from d2lpar import launch
from d2lpar.processes.dist_env import RankInfo, place

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "gpu07",
    "MASTER_PORT": "29400",
}
# Written down from a task of `srun` of Slurm 22.05: three nodes, eight tasks.
SLURM = {
    "SLURM_PROCID": "7",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "gpu[01-03,07]",
    "SLURM_NODELIST": "gpu[01-03,07]",
    "SLURM_STEP_NODELIST": "gpu[02-03,07]",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),2",
}


def without(variables: dict, *names: str) -> dict:
    return {name: value for name, value in variables.items() if name not in names}


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A `scontrol show hostnames` on PATH, and nothing else of Slurm's."""
    monkeypatch.setenv("PATH", f"{install(tmp_path / 'bin', 'scontrol')}:/usr/bin:/bin")


@pytest.fixture
def no_job(monkeypatch):
    """A process as nobody started it, whatever runs these tests."""
    for name in [*TORCHRUN, *(name for name in os.environ if name.startswith("SLURM_"))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("D2LPAR_DEVICES", "virtual")


# --- Places --------------------------------------------------------------------------------------


def test_torchrun_says_it_all():
    assert place(TORCHRUN) == RankInfo(5, 8, 1, 4, "gpu07", 29400, "torchrun")


def test_by_hand_all_ranks_are_on_one_machine():
    assert place(without(TORCHRUN, "LOCAL_WORLD_SIZE")).local_world_size == 8


def test_no_variables_mean_one_process():
    assert place({"MASTER_PORT": "29400"}) == RankInfo(0, 1, 0, 1, "", 0, "nobody")


def test_slurm_says_it_all(scontrol):
    assert place(SLURM) == RankInfo(7, 8, 1, 2, "gpu02", 15_000 + 4567, "Slurm")


def test_torchrun_under_slurm_goes_before_slurm():
    assert place(SLURM | TORCHRUN) == place(TORCHRUN)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[01-03,07]", "gpu01"),
        ("a1,b[2-3]", "a1"),
        ("rack[0-1]n[0-3]", "rack0n0"),
        ("node-a[098-102],login", "node-a098"),
        ("single", "single"),
    ],
)
def test_the_first_node_is_the_master(scontrol, nodes, first):
    assert place(SLURM | {"SLURM_STEP_NODELIST": nodes}).master_address == first
    older = without(SLURM, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") | {"SLURM_NODELIST": nodes}
    assert place(older).master_address == first


def test_slurm_with_the_master_set_by_hand_asks_no_scontrol(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    me = place(SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "4711"})
    assert (me.master_address, me.master_port) == ("head", 4711)


@pytest.mark.parametrize(
    ("per_node", "node", "tasks"),
    [("2(x3)", 2, 2), ("2(x3),1", 3, 1), ("4", 0, 4), ("1,3(x2)", 1, 3)],
)
def test_tasks_of_this_node(per_node, node, tasks):
    here = {"SLURM_TASKS_PER_NODE": per_node, "SLURM_NODEID": str(node), "MASTER_ADDR": "head"}
    assert place(without(SLURM, "SLURM_STEP_TASKS_PER_NODE") | here).local_world_size == tasks


@pytest.mark.parametrize("job", [1, 9_999, 10_000, 2**31])
def test_the_port_of_a_job_is_one_that_users_may_have(job):
    port = place(SLURM | {"SLURM_JOB_ID": str(job), "MASTER_ADDR": "head"}).master_port
    assert 15_000 <= port < 25_000
    assert (port - job) % 10_000 == 5_000


def test_one_slurm_task_needs_no_scontrol_and_no_srun():
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
    assert place(batch) == RankInfo(started_by="Slurm")


# --- What people get wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (without(TORCHRUN, "WORLD_SIZE"), ["RANK is '5'", "WORLD_SIZE is not set", "torchrun"]),
        (without(TORCHRUN, "RANK"), ["WORLD_SIZE is '8'", "RANK is not set", "torchrun"]),
        (without(TORCHRUN, "LOCAL_RANK"), ["LOCAL_RANK is not set", "on its machine, from 0"]),
        (TORCHRUN | {"MASTER_ADDR": ""}, ["MASTER_ADDR is not set", "machine of rank 0"]),
        (
            without(TORCHRUN, "MASTER_PORT") | {"MASTER_PROT": "29401"},
            ["MASTER_PORT is not set", "MASTER_PROT is, to '29401'", "misspelt"],
        ),
        (
            without(TORCHRUN, "WORLD_SIZE") | {"WORLDSIZE": "8"},
            ["WORLD_SIZE is not set", "WORLDSIZE is, to '8'"],
        ),
        (TORCHRUN | {"RANK": "8"}, ["RANK is 8", "less than WORLD_SIZE, which is 8"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK is '-1'", "whole number"]),
        (TORCHRUN | {"WORLD_SIZE": "two"}, ["WORLD_SIZE is 'two'", "whole number"]),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["WORLD_SIZE is 0", "at least 1"]),
        (TORCHRUN | {"MASTER_PORT": "65536"}, ["MASTER_PORT is 65536", "less than"]),
        (without(SLURM, "SLURM_LOCALID"), ["SLURM_LOCALID is not set", "srun"]),
        (
            without(SLURM, "SLURM_NTASKS") | {"SLURM_NTASK": "8"},
            ["SLURM_NTASKS is not set", "SLURM_NTASK is, to '8'"],
        ),
        (
            without(SLURM, "SLURM_STEP_ID") | {"SLURM_PROCID": "0"},
            ["SLURM_NTASKS is 8", "batch script", "`srun python"],
        ),
    ],
)
def test_errors_name_the_variable_its_value_and_the_remedy(scontrol, variables, says):
    with pytest.raises(ValueError, match=says[0]) as raised:
        place(variables)
    assert [text for text in says if text not in str(raised.value)] == []


def test_no_list_of_nodes(scontrol):
    lists = [name for name in SLURM if name.endswith("NODELIST")]
    with pytest.raises(ValueError, match="SLURM_JOB_NODELIST is not set"):
        place(without(SLURM, *lists))


def test_no_scontrol(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"scontrol.* is not on this node's PATH.* MASTER_ADDR"):
        place(SLURM)


@pytest.mark.parametrize(("body", "code"), [("echo no such node >&2; exit 3", 3), ("exit 0", 0)])
def test_a_scontrol_that_fails_or_is_silent(monkeypatch, tmp_path, body, code):
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=f"gpu.02-03,07.*ended with {code}.*MASTER_ADDR") as raised:
        place(SLURM)
    assert ("no such node" in str(raised.value)) == (code == 3)


# --- Process groups ------------------------------------------------------------------------------


def test_one_process_is_a_group_too_and_leaves_nothing(no_job):
    threads = torch.get_num_threads()
    with launch.process_group() as me:
        value = torch.tensor([3.0])
        dist.all_reduce(value)
        assert (me, value.item(), dist.get_backend()) == (RankInfo(), 3.0, "gloo")
    assert not dist.is_initialized()
    assert torch.get_num_threads() == threads


def test_the_group_ends_after_an_error(no_job):
    with pytest.raises(ZeroDivisionError), launch.process_group():
        1 / 0  # noqa: B018
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("variables", "cores", "threads"),
    [
        ({}, 8, 2),
        ({}, 3, 1),
        ({"OMP_NUM_THREADS": "8"}, 8, 8),
        ({"SLURM_CPUS_PER_TASK": "3"}, 8, 2),
    ],
)
def test_ranks_share_the_cores(no_job, monkeypatch, variables, cores, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch._threads(place(TORCHRUN), cores) == threads


def test_slurm_says_how_many_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert launch._threads(RankInfo(world_size=4, local_world_size=4, started_by="Slurm"), 16) == 3


@pytest.mark.parametrize(
    ("gpus", "rank", "ranks", "bound", "device"),
    [
        (0, 0, 1, False, "cpu"),
        (1, 0, 1, False, "cuda:0"),
        (4, 3, 4, False, "cuda:3"),
        (1, 1, 2, False, "cpu"),  # not enough for all: none has one
        (1, 1, 2, True, "cuda:0"),  # Slurm shows each task its own
    ],
)
def test_a_gpu_for_each_rank_or_for_none(monkeypatch, gpus, rank, ranks, bound, device):
    monkeypatch.delenv("D2LPAR_DEVICES", raising=False)
    monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)
    if bound:
        monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    me = RankInfo(local_rank=rank, local_world_size=ranks, world_size=ranks, rank=rank)
    assert me.device == torch.device(device)
    monkeypatch.setenv("D2LPAR_DEVICES", "virtual")
    assert me.device == torch.device("cpu")


@pytest.fixture
def by_hand(no_job, monkeypatch):
    """Rank 0 of one, started by hand; returns a setter of further variables."""
    rank_0 = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    for name, value in rank_0.items():
        monkeypatch.setenv(name, value)
    return monkeypatch.setenv


def test_a_port_that_is_taken_is_named_with_its_holder(by_hand):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        by_hand("MASTER_PORT", str(port))
        with pytest.raises(ValueError, match=f"MASTER_PORT is {port}.*to another number") as raised:
            launch.process_group().__enter__()
    if sys.platform == "linux":
        assert f"process {os.getpid()} (" in str(raised.value)
    assert not dist.is_initialized()


def test_a_master_that_nobody_knows(by_hand):
    by_hand("MASTER_PORT", "29400")
    by_hand("MASTER_ADDR", "no-such-host.invalid")
    with pytest.raises(ValueError, match=r"MASTER_ADDR is 'no-such-host.invalid'.*cannot find"):
        launch.process_group().__enter__()


@pytest.mark.parametrize(
    ("rank", "shared", "restarts", "told"),
    [(0, "True", "3", 1), (1, "True", "3", 0), (0, "False", "3", 0), (0, "True", "0", 0)],
)
def test_restarts_from_a_shared_store_are_warned_of(
    monkeypatch, caplog, rank, shared, restarts, told
):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    launch._warn_of_shared_store(RankInfo(rank=rank, world_size=2))
    assert caplog.text.count("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1") == told
