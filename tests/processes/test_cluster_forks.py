"""Engines forked from a process that has imported torch: they are as if each had been started."""

import os
import random
import sys
import time
from importlib.util import find_spec

import numpy as np
import psutil
import pytest
import warm_process

from d2lpar.processes.cluster.failures import RanksEndedError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux only"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

forked_engines = pytest.importorskip("d2lpar.processes.cluster.starting.forked_engines")

N, SOON_S = 2, 10


def parents(ranks):
    return set(ranks.run(os.getppid))


def server():
    return forked_engines._server._process


def test_ranks_of_a_restarted_cluster_come_from_the_same_process(ranks):
    assert parents(ranks) == {server().pid}
    before = set(ranks.run(os.getpid))
    ranks.restart()
    assert parents(ranks) == {server().pid}
    assert not before & set(ranks.run(os.getpid))


def test_a_rank_has_an_environment_a_session_and_random_numbers_of_its_own(ranks):
    def draw():
        return random.random(), np.random.rand()  # noqa: NPY002

    for numbers in zip(*ranks.run(draw), strict=True):
        assert len(set(numbers)) == N
    assert ranks.run(os.getsid, 0) == ranks.run(os.getpid)
    folder = str(ranks._engines.folder.path)
    assert set(ranks.run(lambda: os.environ["IPP_PROFILE_DIR"])) == {folder}
    assert set(ranks.run(os.getcwd)) == {os.getcwd()}
    forks = ranks.run(lambda: [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)])
    for given, out, error in forks:
        assert given == os.devnull
        assert out == error
        assert out.startswith(folder)
    assert len({out for _, out, _ in forks}) == N


@pytest.mark.slow
def test_another_environment_has_another_server_and_its_end_does_not_end_ranks(ranks, monkeypatch):
    before = server()
    monkeypatch.setenv("D2LPAR_TEST_OF_FORKS", "new")
    ranks.restart()
    assert ranks.run(lambda: os.environ["D2LPAR_TEST_OF_FORKS"]) == ["new"] * N
    assert server().pid != before.pid
    assert before.returncode is not None

    pids, killed = ranks.run(os.getpid), server()
    killed.kill()
    killed.wait()
    assert ranks.run(os.getpid) == pids
    psutil.Process(pids[1]).kill()
    deadline_s = time.monotonic() + SOON_S
    while ranks.is_running and time.monotonic() < deadline_s:
        time.sleep(0.02)
    with pytest.raises(RanksEndedError, match="rank 1 died"):
        ranks.run(os.getpid)
    assert forked_engines.warm_up({}).is_open
    assert server().pid != killed.pid


def test_elsewhere_than_on_linux_each_rank_is_started(monkeypatch):
    started = []
    monkeypatch.setattr(forked_engines, "_server", None)
    plainly = forked_engines.launchers.LocalEngineLauncher
    monkeypatch.setattr(plainly, "start", lambda engine: started.append(engine))
    with monkeypatch.context() as patch:
        patch.setattr(forked_engines, "sys", Elsewhere)
        assert forked_engines.warm_up({}) is None
    engine = forked_engines.ForkedEngineLauncher()
    engine.start()
    assert started == [engine]


class Elsewhere:
    """What is asked of `sys`, on a Mac."""

    platform = "darwin"


@pytest.mark.parametrize("threads", [0, 1])
def test_a_process_with_a_second_thread_does_not_fork_engines(threads):
    code = f"""
import threading
from d2lpar.processes.cluster.starting import fork_server
for _ in range({threads}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(fork_server._is_alone())
"""
    assert warm_process.run(code).stdout == f"{not threads}\n"


def test_a_server_that_is_not_safe_is_not_asked_again(monkeypatch, tmp_path):
    monkeypatch.setattr(forked_engines.fork_server, "__name__", "unsafe")
    monkeypatch.setattr(forked_engines, "_server", None)
    (tmp_path / "unsafe.py").write_text("print('unsafe')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = forked_engines.warm_up({})
    forked_engines.wait_until_ready(server, lambda: SOON_S)
    assert server.is_unsafe
    assert forked_engines.warm_up({}) is None


def test_it_ends_with_its_notebook_also_while_a_forked_child_lives_on():
    """A child of the notebook, such as a worker of a DataLoader, holds its end of the pipe."""
    code = """
import os, time
from d2lpar.processes.cluster.starting import fork_server
notebook, (requests, _) = os.getpid(), os.pipe()
os.dup2(requests, 0)
pid = os.fork()
if not pid:
    fork_server._serve(notebook)  # holds the other end itself
    os._exit(0)
print(pid)
"""
    forked = psutil.Process(int(warm_process.run(code).stdout))
    forked.wait(SOON_S)


def test_it_ends_when_nothing_has_run_for_long():
    code = """
import os
from d2lpar.processes.cluster.starting import fork_server
fork_server.IDLE_S = 1
requests, _ = os.pipe()
os.dup2(requests, 0)
fork_server._serve(os.getppid())
print("ended")
"""
    assert warm_process.run(code).stdout == "ended\n"
