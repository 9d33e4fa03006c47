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
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import d2lpar as par
from d2lpar.cluster.failures import RankError, RanksEndedError
from d2lpar.cluster.processes import is_running

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

N = 2
SOON_S = 5  # two on an idle machine


@pytest.fixture(scope="module")
def cluster():
    with par.cluster(N) as ranks:
        yield ranks


@pytest.fixture
def ranks(cluster):
    """The module's ranks, restarted if a test has ended them."""
    return cluster if cluster.is_running else cluster.restart()


def family(ranks):
    """The processes of the cluster, and its folder."""
    folder = ranks._engines.folder.path
    pids = [place.pid for place in ranks._engines.places]
    found = [
        one for one in psutil.Process().children(recursive=True) if folder.name in environ(one)
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

    monkeypatch.setattr("d2lpar.cluster.processes.end", interrupted)
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
    par.report(folder=None)
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(600)

ranks = par.cluster(2)
tell = lambda rank, values: rank or print(ranks._engines.folder.path, flush=True)
{use}
"""


@pytest.mark.parametrize(
    ("use", "end"),
    [
        pytest.param("ranks.run(block, on_report=tell)", signal.SIGKILL, id="killed"),
        pytest.param(
            "tell(0, None); time.sleep(600)", signal.SIGTERM, id="ended", marks=pytest.mark.slow
        ),
        pytest.param("tell(0, None); input()", None, id="exits", marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_its_notebook(use, end):
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK.format(use=use)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as notebook:
        folder = Path(notebook.stdout.readline().strip())
        processes = psutil.Process(notebook.pid).children(recursive=True)
        assert folder.is_dir()
        assert len(processes) >= 3
        if end is None:
            notebook.stdin.write("\n")
            notebook.stdin.flush()
        else:
            notebook.send_signal(end)
        notebook.wait()
        check_gone(processes, folder)


def test_what_all_processes_left_is_removed_later(monkeypatch, tmp_path):
    from d2lpar.cluster import folder

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
        code = "from d2lpar.cluster import folder; folder.remove_abandoned()"
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
