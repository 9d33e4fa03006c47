"""Ranks that raise, die or are interrupted, and notebooks that are killed: it fails fast, and
nothing survives."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import d2lpar as par
from d2lpar.processes.cluster.failures import RankError, RanksEndedError
from d2lpar.processes.cluster.starting import lifeline
from d2lpar.processes.cluster.starting.process_tree import is_running

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

N = 2
SOON_S = 5  # two on an idle machine


def family(ranks):
    """The processes of the cluster, and its folder."""
    folder = ranks._engines.folder.path
    pids = [place.pid for place in ranks._engines.places]
    enlisted = {int(note.name) for note in (folder / lifeline.PIDS).iterdir()}
    found = [
        one
        for one in psutil.Process().children(recursive=True)
        if one.pid in enlisted or folder.name in environ(one)
    ]
    assert set(pids) <= {one.pid for one in found}
    assert len(found) >= N + 1
    return found, folder


def environ(process):
    with contextlib.suppress(psutil.Error):
        return process.environ().get("IPP_PROFILE_DIR", "")
    return ""


def check_gone(processes, folder, *, within_s=SOON_S):
    deadline_s = time.monotonic() + within_s
    while (any(map(is_running, processes)) or folder.exists()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not [one for one in processes if is_running(one)]
    assert not folder.exists()


def train(steps):
    """Training steps as in data parallelism: compute, all-reduce, step."""
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 16)
    for step in range(steps):
        net.zero_grad()
        net(torch.rand(8, 16)).square().sum().backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 1e-3 * parameter.grad
        if step == 3:
            par.report(step=step)
    return net.weight.sum().item()


def test_a_rank_that_raises_is_named_while_the_other_is_blocked(ranks, capsys):
    def step():
        print("begun")
        if dist.get_rank() == 1:
            raise ValueError("bad batch")
        dist.all_reduce(torch.ones(1))

    processes, folder = family(ranks)
    start_s = time.monotonic()
    with pytest.raises(RankError) as raised:
        ranks.run(step)
    assert time.monotonic() - start_s < SOON_S
    assert str(raised.value) == "rank 1 raised ValueError: bad batch"
    assert 'raise ValueError("bad batch")' in raised.value.traceback
    assert "other ranks were ended" in raised.value.__notes__[-1]
    assert capsys.readouterr().out == "[rank 0] begun\n[rank 1] begun\n"
    check_gone(processes, folder)
    for use in (lambda: ranks.run(print), lambda: ranks.run_cell("1"), lambda: ranks["x"]):
        with pytest.raises(
            RanksEndedError,
            match=r"have ended: rank 1 raised ValueError: bad batch. `ranks.restart\(\)` starts",
        ):
            use()
    assert repr(ranks) == f"{N} ranks, ended: rank 1 raised ValueError: bad batch"


@pytest.mark.slow
def test_an_operation_that_one_rank_left_out_ends_the_ranks(ranks):
    """Nobody is blocked, but the next all-reduce would meet a broadcast's remains."""

    def step():
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)
        else:
            raise ValueError("no receive")

    with pytest.raises(RankError, match="rank 1 raised ValueError: no receive"):
        ranks.run(step)
    assert not ranks.is_running


def kill_while_training(ranks, seed):
    """Kill a random rank at a random moment; returns its number and the seconds to the error."""
    random_ = random.Random(seed)
    victim, delay_s = random_.randrange(N), random_.uniform(0, 0.5)
    processes, folder = family(ranks)
    killed_s = []

    def kill():
        os.kill(ranks._engines.places[victim].pid, signal.SIGKILL)
        killed_s.append(time.monotonic())

    timer = threading.Timer(delay_s, kill)

    def on_report(rank, values):
        if not timer.is_alive() and not killed_s:
            timer.start()

    with pytest.raises(RankError) as raised:
        ranks.run(train, 10**7, on_report=on_report)
    assert str(raised.value) == f"rank {victim} died: signal 9 (SIGKILL)"
    check_gone(processes, folder)
    return time.monotonic() - killed_s[0]


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_rank_fails_the_cell_fast(ranks, seed):
    assert kill_while_training(ranks, seed) < SOON_S


@pytest.mark.slow
def test_twenty_killed_ranks_and_one_cluster(ranks):
    for seed in range(20):
        assert kill_while_training(ranks, seed + 100) < SOON_S
        ranks.restart()
        assert len(set(ranks.run(train, 5))) == 1


def test_a_rank_that_exits_is_named_with_its_code(ranks):
    def leave():
        if dist.get_rank() == 0:
            os._exit(7)
        with contextlib.suppress(RuntimeError):  # a victim that hides what it saw
            dist.barrier()
        raise KeyError("training failed") from None

    with pytest.raises(RankError, match=r"^rank 0 died: exit code 7"):
        ranks.run(leave)


@pytest.mark.usefixtures("interrupts")
def test_interrupting_blocked_ranks_ends_them(ranks):
    def block():
        par.report(blocked=True)
        if dist.get_rank() == 0:
            dist.barrier()

    processes, folder = family(ranks)

    def interrupt(rank, values):
        if rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(1)  # where the interrupt comes, as in any cell

    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="were blocked and have been ended"):
        ranks.run(block, on_report=interrupt)
    assert time.monotonic() - start_s < SOON_S
    check_gone(processes, folder)
    assert par.cluster(N) is ranks  # asked for again, they are restarted
    assert ranks.run(dist.get_rank) == list(range(N))


def test_interrupting_ranks_that_run_python_keeps_them(ranks):
    def work():
        par.report(working=True)
        while True:
            time.sleep(0.01)

    def interrupt(rank, values):
        if rank == 0:
            raise KeyboardInterrupt

    before = [place.pid for place in ranks._engines.places]
    with pytest.raises(KeyboardInterrupt):
        ranks.run(work, on_report=interrupt)
    assert ranks.run(os.getpid) == before


def test_an_interrupt_that_finds_a_rank_about_to_reply_keeps_it(ranks):
    """Ipykernel would raise KeyboardInterrupt there, outside the call, and lose the reply."""

    def slow_to_reply():
        if dist.get_rank() == 1:
            kernel = get_ipython().kernel  # noqa: F821 - IPython's, on the rank
            finish = kernel.finish_metadata

            def finish_late(*args):
                deadline_s = time.monotonic() + 0.5
                while time.monotonic() < deadline_s:
                    time.sleep(0.01)
                return finish(*args)

            kernel.finish_metadata = finish_late

    def work():
        if dist.get_rank() == 0:
            time.sleep(0.1)  # the other one is done by then
            par.report(working=True)
            time.sleep(60)

    def interrupt(rank, values):
        raise KeyboardInterrupt

    ranks.run(slow_to_reply)
    before = [place.pid for place in ranks._engines.places]
    with pytest.raises(KeyboardInterrupt):
        ranks.run(work, on_report=interrupt)
    assert ranks.run(os.getpid) == before


def test_stopping_leaves_nothing_and_may_be_repeated(ranks):
    processes, folder = family(ranks)
    assert folder.stat().st_mode & 0o777 == 0o700
    ranks.stop()
    check_gone(processes, folder)
    ranks.stop()
    with pytest.raises(RanksEndedError, match="they were stopped"):
        ranks.run(print)


def test_an_interrupt_while_ranks_end_does_not_keep_them(ranks, monkeypatch):
    processes, folder = family(ranks)

    def interrupted(family):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("d2lpar.processes.cluster.starting.process_tree.end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ranks.stop()
    check_gone(processes, folder)


@pytest.mark.slow
def test_a_rank_that_dies_between_cells_is_noticed_by_the_next(ranks):
    processes, folder = family(ranks)
    victim = psutil.Process(ranks._engines.places[1].pid)
    victim.kill()
    while is_running(victim):
        time.sleep(0.01)
    with pytest.raises(RanksEndedError, match=r"rank 1 died: signal 9 \(SIGKILL\)"):
        ranks.run(print)
    check_gone(processes, folder)


NOTEBOOK = """
import os, sys, time
import d2lpar as par, torch, torch.distributed as dist

def block():
    from multiprocessing.shared_memory import SharedMemory
    shared = SharedMemory(create=True, size=100)
    par.report(shared=shared.name)
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(600)

ranks = par.cluster(2)
tell = lambda rank, values: print(values.get("shared"), flush=True)
print(ranks._engines.folder.path, flush=True)
{use}
"""


BLOCKED = "ranks.run(block, on_report=tell)"


@pytest.mark.parametrize(
    ("use", "end"),
    [
        pytest.param(BLOCKED, signal.SIGKILL, id="killed"),
        pytest.param(BLOCKED, signal.SIGTERM, id="ended", marks=pytest.mark.slow),
        pytest.param(BLOCKED, signal.SIGHUP, id="hung-up", marks=pytest.mark.slow),
        pytest.param("input()", None, id="exits", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("hang_ups")
def test_nothing_outlives_its_notebook(use, end):
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK.format(use=use)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as notebook:
        folder = Path(notebook.stdout.readline().strip())
        shared = [notebook.stdout.readline().strip() for _ in range(N)] if use == BLOCKED else []
        processes = psutil.Process(notebook.pid).children(recursive=True)
        assert folder.is_dir()
        assert all(map(is_shared, shared))
        assert len(processes) >= 3
        if end is None:
            notebook.stdin.write("\n")
            notebook.stdin.flush()
        else:
            notebook.send_signal(end)
        notebook.wait()
        check_gone(processes, folder)
        assert not any(map(is_shared, shared))


def is_shared(name):
    """Whether there is shared memory of that name."""
    try:
        memory = SharedMemory(name)
    except FileNotFoundError:
        return False
    resource_tracker.unregister(memory._name, "shared_memory")  # it is not this process's
    memory.close()
    return True


def test_what_all_processes_left_is_removed_later(monkeypatch, tmp_path):
    from d2lpar.processes.cluster.starting import folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, young = tmp_path / "d2lpar-cluster-1-a", tmp_path / "d2lpar-cluster-1-b"
    for path in (abandoned, young):
        path.mkdir()
        (path / folder.LOCK).touch()
    os.utime(abandoned, (0, 0))
    with contextlib.closing(Closing(folder.Folder())) as kept:
        assert not abandoned.exists()
        assert young.exists()
        os.utime(kept.folder.path, (0, 0))
        code = "from d2lpar.processes.cluster.starting import folder; folder.remove_abandoned()"
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        assert kept.folder.path.exists()  # it is locked
    assert not kept.folder.path.exists()


class Closing:
    def __init__(self, folder):
        self.folder = folder

    def close(self):
        self.folder.remove()


def test_ranks_that_do_not_come_up_show_their_log(monkeypatch, tmp_path):
    (tmp_path / "ipcluster_config.py").write_text(
        "import sys\n"
        "c = get_config()\n"
        "c.LocalEngineLauncher.engine_cmd = c.LocalEngineSetLauncher.engine_cmd = [\n"
        "    sys.executable, '-c', 'import sys; print(\"no such module\"); sys.exit(4)']\n"
    )
    with pytest.raises(RuntimeError, match=r"(?s)0 of 2 ranks .*exit code 4.*no such module"):
        par.cluster(2, profile=tmp_path)
    assert not [one for one in psutil.Process().children() if environ(one)]


def test_a_start_that_is_too_slow_says_what_to_do():
    with pytest.raises(RuntimeError) as raised:
        par.cluster(N + 1, timeout_s=0.2)
    assert str(raised.value).startswith(
        "0 of 3 ranks came up within 0.2 s. `timeout_s=0.4` gives them more time; fewer ranks need"
    )
    assert "cores; none of them logged an error" in str(raised.value)
    assert not [one for one in psutil.Process().children() if environ(one)]


def test_also_when_the_ranks_do_not_find_one_another(monkeypatch):
    """They have half a second for it, in which the last of them is stopped."""
    from d2lpar.processes.cluster.starting.engines import Engines

    order = Engines._order

    def stop_one(engines):
        order(engines)
        os.kill(engines.places[-1].pid, signal.SIGSTOP)
        engines.deadline_s = time.monotonic() + 0.5

    monkeypatch.setattr(Engines, "_order", stop_one)
    with pytest.raises(RuntimeError, match="3 ranks came up, but did not find one another within"):
        par.cluster(N + 1)
    assert not [one for one in psutil.Process().children() if environ(one)]


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "60"])
def test_a_time_that_is_none_is_named(timeout_s):
    with pytest.raises(ValueError, match=f"timeout_s of cluster must be .* not {timeout_s!r}"):
        par.cluster(2, timeout_s=timeout_s)


def test_more_ranks_have_more_time_to_start():
    from d2lpar.machines.measuring import system
    from d2lpar.processes.cluster.launcher import START_S, _start_s

    assert START_S < _start_s(1) < _start_s(2)
    assert _start_s(8 * system.cores()) == START_S + 80


def test_the_log_of_a_failed_start_has_only_what_matters():
    from d2lpar.processes.cluster.starting.engines import _HARMLESS

    log = """<frozen runpy>:128: RuntimeWarning: 'd2lpar.processes.cluster.….lifeline' found in …
2026-11-22 07:43:33.588 [IPController] Generating new CURVE credentials
2026-11-22 07:43:33.635 [IPController] WARNING | Message signing is disabled.
2026-11-22 07:43:39.556 [IPController] ERROR | Monitor message without topic: [b'', b'{"a": 1}']
2026-11-22 07:43:40.000 [IPEngine] CRITICAL | Error completing registration: no room
Traceback (most recent call last):
2026-11-22 07:43:41.000 [IPEngine.1] ERROR | no room, either"""
    kept = [line for line in log.splitlines() if not _HARMLESS.match(line)]
    assert [line.rpartition("] ")[2] for line in kept] == [
        "CRITICAL | Error completing registration: no room",
        "Traceback (most recent call last):",
        "ERROR | no room, either",
    ]


def stop_soon(pid):
    """A callable for reports that stops a process at the first."""
    stopped = []

    def on_report(rank, values):
        if not stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    return on_report


def test_a_stopped_controller_ends_the_call(ranks, monkeypatch):
    monkeypatch.setattr("d2lpar.processes.cluster.starting.engines.STOPPED_S", 1)
    processes, folder = family(ranks)
    pid = ranks._engines._cluster.controller.pid
    with pytest.raises(RanksEndedError, match="stopped by a signal or a debugger for 1 s"):
        ranks.run(train, 10**7, on_report=stop_soon(pid))
    check_gone(processes, folder)


@pytest.mark.slow
def test_a_stopped_rank_is_given_up_and_the_error_says_why(monkeypatch):
    monkeypatch.setattr("d2lpar.processes.cluster.starting.engines.SILENT_S", 15)
    with par.cluster(N + 1) as ranks:  # its controller has the shorter patience
        processes, folder = family(ranks)
        pid = ranks._engines.places[1].pid
        with pytest.raises(RankError) as raised:
            ranks.run(train, 10**7, on_report=stop_soon(pid))
        assert str(raised.value).startswith("rank 1 gave no heartbeat for 15 s: its process")
        assert f"`kill -CONT {pid}` in time lets" in str(raised.value)
        check_gone(processes, folder)
