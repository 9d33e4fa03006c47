"""Who comes too late, in simulated time, ends the others: over gloo as real ranks, over NCCL by the
watchdog."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import d2lpar as par
from d2lpar.vgpu.api.timing import now_s

pytestmark = pytest.mark.filterwarnings("ignore:barrier:UserWarning")

PROGRAM = Path(__file__).parents[2] / "programs" / "late_rank.py"
LINES = Path(__file__).read_text().splitlines()
LIMIT = timedelta(seconds=6)
GROUP = "the group of ranks 0, 1"


def said(*command):
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines, done.stdout + done.stderr
    return lines


def test_virtual_ranks_are_late_as_real_ones_of_gloo_are():
    real = said("torch.distributed.run", "--nproc-per-node", 2, PROGRAM)
    virtual = said("d2lpar", "run", "--gpus", 0, "torchrun", "--nproc-per-node", 2, PROGRAM)
    assert virtual == real
    assert sum("passed" in line for line in real) < len(real) / 2


# --- NCCL -----------------------------------------------------------------------------------------


def here(size=1):
    return torch.ones(size, device=f"vgpu:{dist.get_rank()}")


def line_of(mark):
    (number,) = [i for i, line in enumerate(LINES, 1) if line.endswith(f"# {mark}")]
    return f"{Path(__file__).name}:{number}"


def run(function, **variables):
    def on_rank():
        os.environ.update(variables)
        return function(dist.get_rank())

    with par.simulate("2x-v100-textbook") as gpus:
        return par.run_ranks(on_rank, gpus)


def error_of(function, **variables):
    with pytest.raises(dist.DistBackendError) as caught:
        run(function, **variables)
    return str(caught.value)


def late_to(call, late_s=15):
    """Rank 1 comes late to a call of a group that waits 6 s."""

    def on_rank(rank):
        dist.init_process_group("nccl", timeout=LIMIT)
        dist.all_reduce(here())  # before
        par.host_work(late_s * rank, "prepare data")
        call(rank)  # late call
        torch.vgpu.synchronize()
        return now_s()

    return on_rank


CALLS = {
    "all_reduce": lambda rank: dist.all_reduce(here()),
    "unawaited": lambda rank: dist.all_reduce(here(), async_op=True),
    "barrier": lambda rank: dist.barrier(),
    "objects": lambda rank: dist.all_gather_object([None, None], rank),
    "one object": lambda rank: dist.broadcast_object_list([rank], 0),
    "recv": lambda rank: dist.send(here(), 0) if rank else dist.recv(here(), 1),
    "large send": lambda rank: (
        dist.recv(here(2**21), 0) if rank else dist.send(here(2**21), 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_watchdog_names_the_late_rank_and_what_it_did(name):
    text = error_of(late_to(CALLS[name]))
    assert text.startswith(
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
    )
    assert "Timeout(ms)=6000) ran for 6000 milliseconds" in text
    assert "rank 1 came 15 s later" in text
    assert (
        f"its call before was all_reduce([1] float32, SUM) of {GROUP}, at {line_of('before')}"
        in text
    )
    assert "timeout=" in text


@pytest.mark.parametrize("name", CALLS)
def test_who_comes_in_time_passes(name):
    assert min(run(late_to(CALLS[name], late_s=5))) > 5


def test_no_rank_catches_the_end_of_its_process():
    def on_rank(rank):
        try:
            return late_to(CALLS["all_reduce"])(rank)
        except Exception:
            return "caught"

    assert "Watchdog" in error_of(on_rank)


def test_what_gpus_do_before_counts():
    """The host has queued the call in time: it is not over in time."""

    def on_rank(rank):
        dist.init_process_group("nccl", timeout=timedelta(milliseconds=10))
        x = here(2**26).view(2**13, 2**13)
        for _ in range(10 * rank):
            x @ x
        dist.all_reduce(here())
        torch.vgpu.synchronize()

    text = error_of(on_rank)
    assert "[Rank 0] Watchdog" in text
    assert "GPUs had to do before" in text


@pytest.mark.parametrize(
    ("options", "minutes", "passes"),
    [((), 9, True), ((), 11, False), (("cpu:gloo,cuda:nccl",), 11, True)],
)
def test_limits_that_nobody_has_given_are_torch_s(options, minutes, passes):
    """10 minutes for NCCL, and 30 for all else."""

    def on_rank(rank):
        dist.init_process_group(*(options or ("nccl",)))
        par.host_work(60 * minutes * rank, "prepare data")
        dist.barrier()
        return True

    if passes:
        assert run(on_rank) == [True, True]
    else:
        assert "Timeout(ms)=600000" in error_of(on_rank)


def test_groups_have_limits_of_their_own():
    def on_rank(rank):
        dist.init_process_group("nccl", timeout=LIMIT)
        patient = dist.new_group([0, 1], timeout=timedelta(seconds=60))
        par.host_work(15 * rank, "prepare data")
        dist.barrier(patient)
        dist.set_timeout(timedelta(seconds=20))
        par.host_work(15 * rank, "prepare data")
        dist.barrier()
        return True

    assert run(on_rank) == [True, True]


def test_blocking_waits_raise_an_error_that_can_be_caught():
    caught = []

    def on_rank(rank):
        try:
            late_to(CALLS["all_reduce"])(rank)
        except dist.DistBackendError as error:
            caught.append((rank, now_s(wait=False), str(error)))

    run(on_rank, TORCH_NCCL_BLOCKING_WAIT="1")
    (rank, time_s, text), (other, later_s, _) = caught
    assert (rank, other) == (0, 1)
    assert time_s == pytest.approx(6, abs=0.1)
    assert later_s == pytest.approx(15, abs=0.1)
    assert "timed out in blocking wait" in text


def test_without_its_handling_a_timeout_ends_nobody():
    found = run(late_to(CALLS["all_reduce"]), TORCH_NCCL_ASYNC_ERROR_HANDLING="0")
    assert min(found) > 15


def test_a_store_s_key_that_comes_too_late_is_not_waited_for():
    def on_rank(rank):
        store = dist.TCPStore("localhost", 23456, 2, rank == 0, timedelta(seconds=5))
        if rank:
            par.host_work(15, "prepare data")
            store.set("ready", "1")
            return ""
        with pytest.raises(dist.DistStoreError, match="wait timeout after 5000ms"):
            store.get("ready")
        assert now_s(wait=False) == pytest.approx(5, abs=0.1)
        store.set_timeout(timedelta(seconds=20))
        return store.get("ready")

    assert run(on_rank) == [b"1", ""]
