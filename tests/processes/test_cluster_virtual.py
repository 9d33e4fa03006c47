"""Virtual ranks that stand in for processes: for a notebook the same."""

import errno
import os
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import d2lpar as par
from d2lpar.processes.cluster.failures import RankError, RanksEndedError
from d2lpar.processes.cluster.starting import permission
from d2lpar.processes.cluster.virtual import VirtualRanks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setenv(permission.ASKED, "virtual")
    with par.cluster(2) as ranks:
        yield ranks


def from_a_notebook(code):
    """The function that a cell defines."""
    names = {"__name__": "__main__", "device": "the notebook's own, which stays there"}
    exec(code, names)
    return names.popitem()[1]


SUMS = """
def sums(factor, box):
    box.append(rank)
    x = torch.full((3,), float(rank * factor), device=device)
    dist.all_reduce(x)
    par.report(total=x.sum(), rank=rank)
    print("of", world_size, "ranks, box", box)
    return x
"""


def test_a_function_sees_its_rank_and_copies_and_reports(ranks, capsys):
    box, reports = [], []
    tell = lambda rank, values: reports.append((rank, values))  # noqa: E731
    found = ranks.run(from_a_notebook(SUMS), 5, box=box, on_report=tell)
    assert torch.equal(torch.stack(found), torch.full((2, 3), 5.0))
    assert sorted(reports, key=lambda each: each[0]) == [
        (rank, {"total": 15.0, "rank": rank}) for rank in range(2)
    ]
    assert capsys.readouterr().out == (
        "[rank 0] of 2 ranks, box [0]\n[rank 1] of 2 ranks, box [1]\n"
    )
    assert box == []


def test_cells_and_variables_stay_with_their_rank(ranks, capsys):
    ranks.push({"offset": 10})
    ranks.run_cell("own = offset + rank\nown")
    ranks.run_cell("own += 100; own;", ranks=[1])
    assert ranks["own"] == [10, 111]
    assert capsys.readouterr().out == "[rank 0] 10\n[rank 1] 11\n"
    assert ranks.run(from_a_notebook("def f():\n    return own - rank")) == [10, 110]
    with pytest.raises(RankError, match="rank 0 raised NameError: name 'unknown' is not defined"):
        ranks["unknown"]
    ranks.restart()
    with pytest.raises(RankError, match="NameError"):
        ranks["own"]


def test_an_error_names_its_rank_and_line_and_the_ranks_go_on(ranks):
    with pytest.raises(RankError, match="rank 1 raised OSError: the disk is full") as caught:
        ranks.run_cell("if rank == 1:\n    raise OSError('the disk is full')\ndist.barrier()")
    assert (caught.value.rank, caught.value.name) == (1, "OSError")
    assert "[rank 1] cell of the notebook, line 2" in caught.value.traceback
    assert ranks.run(torch.distributed.get_rank) == [0, 1]


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "died: signal 15 (SIGTERM)"),
        ("os._exit(3)", "died: exit code 3"),
    ],
)
def test_a_rank_that_ends_its_process_takes_the_ranks_along_not_the_notebook(ranks, end, how):
    before = os.kill, os._exit
    with pytest.raises(RankError) as caught:
        ranks.run_cell(f"import os, signal\nif rank == 1:\n    {end}\ndist.barrier()")
    assert str(caught.value) == f"rank 1 {how}"
    assert (os.kill, os._exit) == before
    with pytest.raises(RanksEndedError, match=r"rank 1 died.*`ranks.restart\(\)`"):
        ranks.run_cell("1")
    assert ranks.restart().run(torch.distributed.get_rank) == [0, 1]


def test_what_the_notebook_raises_is_the_notebooks(ranks, interrupts):
    def interrupt(rank, values):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ranks.run(from_a_notebook(SUMS), 1, [], on_report=interrupt)
    assert ranks.is_running
    os_signals = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        ranks.run_cell("import os, signal\nif rank == 0:\n    os.kill(os.getpid(), signal.SIGINT)\n"
                       "for _ in range(10**9):\n    pass")  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is os_signals
    assert ranks.run(torch.distributed.get_rank) == [0, 1]


def test_mistakes_say_what_to_do(ranks):
    with pytest.raises(RankError, match=r"cannot start ranks of its own: call cluster\(\)"):
        ranks.run(par.cluster, 2)
    with pytest.raises(RankError, match="the result, of type generator, cannot be sent"):
        ranks.run(from_a_notebook("def f():\n    return (i for i in range(3))"))
    ranks.run_cell("from torch.nn.parallel import DistributedDataParallel as DDP")
    ranks.run_cell("net = DDP(torch.nn.Linear(2, 1))")
    with pytest.raises(RankError, match="make it, and what holds it, such as Distributed"):
        ranks.run_cell("net(torch.ones(1, 2)).sum().backward()")
    ranks.stop()
    with pytest.raises(RanksEndedError, match="they were stopped"):
        ranks.run_cell("1")
    assert "ended: they were stopped" in repr(ranks)


def test_asked_for_again_they_are_the_same(ranks):
    assert par.cluster(2) is ranks
    assert repr(ranks) == (
        "2 virtual ranks (as D2LPAR_RANKS asks) · gloo · they take turns · measured"
    )
    with par.cluster(3) as three:
        assert (len(three), ranks.is_running) == (3, False)


@pytest.mark.parametrize("what", ["ports", "processes"])
def test_they_stand_in_where_something_is_refused(monkeypatch, what):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    if what == "ports":
        monkeypatch.setattr(socket.socket, "bind", refuse)
    else:
        monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.warns(UserWarning, match=f"{what} are refused here: Operation not permitted"):
        ranks = par.cluster(2)
    with ranks:
        assert isinstance(ranks, VirtualRanks)
        assert ranks.run(torch.distributed.get_rank) == [0, 1]


def test_a_wrong_wish_is_named(monkeypatch):
    monkeypatch.setenv(permission.ASKED, "real")
    with pytest.raises(ValueError, match="D2LPAR_RANKS is 'real': it may be 'virtual', or not set"):
        par.cluster(2)


def test_where_nothing_is_refused_there_is_no_reason(monkeypatch):
    monkeypatch.delenv(permission.ASKED, raising=False)
    if os.name == "posix":
        assert permission.why_virtual() is None


def in_a_network_namespace(code):
    return subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_they_stand_in_on_a_machine_without_any_network():
    try:
        possible = in_a_network_namespace("pass").returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("needs unshare, and the right to make a network namespace")
    found = in_a_network_namespace(
        "import d2lpar as par, torch.distributed as dist\n"
        "ranks = par.cluster(2); print(ranks, ranks.run(dist.get_rank))"
    )
    assert "ports are refused here: Network is unreachable" in found.stdout, found.stderr
    assert found.stdout.endswith("[0, 1]\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "lesson",
    [
        "06_distributed_sgd",
        "07_pipelining",
        "deeper/06_distributed_sgd",
        "deeper/07_pipelining",
        "deeper/09_memory_and_mixes",
    ],
)
def test_lessons_with_ranks_run_where_none_may_be_a_process(lesson):
    path = ROOT / "notebooks" / f"{lesson}.ipynb"
    client = NotebookClient(
        nbformat.read(path, as_version=4),
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client.execute(env={**os.environ, permission.ASKED: "virtual"})
