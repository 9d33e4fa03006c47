"""Ranks in a notebook: functions, cells, reports, and what is said of mistakes."""

import functools
import json
import math
import os
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

import d2lpar as par
from d2lpar.processes.cluster import failures, wire
from d2lpar.processes.cluster.output import Output, show
from d2lpar.processes.cluster.starting import worker

zmq = pytest.importorskip("zmq")

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

N = 2


@pytest.fixture(scope="module")
def ranks():
    with par.cluster(N) as ranks:
        yield ranks


def from_a_notebook(code):
    """The function that a cell defines, where the notebook has a few names already."""
    names = {"__name__": "__main__", "N": N, "sys": sys, "time": time}
    names |= {"device": "the notebook's own, which stays there", "factor": 10}
    exec(code, names)
    function = names.popitem()[1]
    assert function.__globals__ is names
    return function


def sum_of_ranks(offset):
    import torch
    import torch.distributed as dist

    x = torch.full((3,), float(dist.get_rank() + offset))
    dist.all_reduce(x)
    return x


def test_collectives_give_what_one_process_computes(ranks):
    expected = torch.full((3,), float(sum(rank + 5 for rank in range(N))))
    results = ranks.run(sum_of_ranks, offset=5)
    assert len(results) == len(ranks) == N
    assert all(torch.equal(result, expected) for result in results)


def test_a_second_call_gives_the_same_ranks(ranks):
    assert par.cluster(N) is ranks


def test_closures_and_what_they_refer_to_are_sent(ranks):
    weights = torch.arange(4.0)

    def helper(x):
        return math.sqrt(x)

    def work(scale, *, shift):
        return (weights * scale).sum().item() + shift + helper(16)

    assert ranks.run(work, 2, shift=1) == [2 * 6 + 1 + 4] * N
    assert ranks.run(lambda: os.getpid()) == [place.pid for place in ranks._engines.places]


def test_functions_of_the_notebook_see_the_names_of_their_rank(ranks):
    look = from_a_notebook("""
def look(): return rank * factor, world_size, local_rank, str(device), of_the_ranks
""")
    ranks.push({"of_the_ranks": "pushed", "factor": "the notebook's comes first"})
    assert ranks.run(look) == [(10 * r, N, r, "cpu", "pushed") for r in range(N)]
    assert look.__globals__["device"].startswith("the notebook's own")


@pytest.mark.parametrize(
    "code",
    [
        "def look(x): return rank, str(device), x\nlook = functools.partial(look, 5)",
        "@torch.no_grad()\ndef look(x=5): return rank, str(device), x",
        "class Look:\n    def __call__(self): return rank, str(device), 5\nlook = Look()",
        "class Look:\n    def go(self): return rank, str(device), 5\nlook = Look().go",
    ],
)
def test_so_do_wrapped_ones_and_objects(ranks, code):
    names = {"__name__": "__main__", "functools": functools, "torch": torch}
    names["device"] = threading.Lock()  # cannot be sent, and is not
    exec(code, names)
    assert ranks.run(names["look"]) == [(r, "cpu", 5) for r in range(N)]


def test_a_rank_has_the_notebooks_place_and_does_real_work(ranks, monkeypatch):
    monkeypatch.setenv("D2LPAR_DEVICES", "virtual")

    def look():
        world = [name for name in os.environ if name in ("D2LPAR_DEVICES", "D2LPAR_BACKING")]
        return os.getcwd(), world, torch._C._get_privateuse1_backend_name()

    assert ranks.run(look) == [(os.getcwd(), [], "privateuseone")] * N
    assert set(filter(None, sys.path)) <= set(ranks.run(lambda: sys.path)[0])


def test_threads_are_shared_out(ranks):
    from d2lpar.machines.measuring import system

    asked = os.environ.get("OMP_NUM_THREADS")
    each = int(asked) if asked else max(1, system.cores() // N)
    assert ranks.run(torch.get_num_threads) == [each] * N == ranks.threads
    word = "thread" if each == 1 else "threads"
    assert repr(ranks) == f"{N} ranks · gloo · {each} {word} each · measured"


def test_what_ranks_print_is_ordered_by_rank(ranks, capsys):
    talk = from_a_notebook("""
def talk():
    time.sleep(0.2 * (N - rank))  # the last rank speaks first
    print("one")
    print("two", "\\nthree")
    print("odd", file=sys.stderr)
""")
    for _ in range(2):
        ranks.run(talk)
        printed = capsys.readouterr()
        assert printed.out == "".join(
            f"[rank {r}] one\n[rank {r}] two\n[rank {r}] three\n" for r in range(N)
        )
        assert printed.err == "".join(f"[rank {r}] odd\n" for r in range(N))


def test_a_cell_shows_its_last_expression(ranks, capsys):
    ranks.run_cell("x = rank + 0.5\nprint('here')\nx, world_size")
    expected = "".join(f"[rank {r}] here\n[rank {r}] ({r}.5, {N})\n" for r in range(N))
    assert capsys.readouterr().out == expected
    assert ranks["x"] == [rank + 0.5 for rank in range(N)]


def test_a_cell_on_one_rank(ranks, capsys):
    ranks.run_cell("only = rank\nonly", ranks=[1])
    assert capsys.readouterr().out == "[rank 1] 1\n"
    with pytest.raises(failures.RankError, match=r"^rank 0 raised NameError: name 'only'"):
        ranks["only"]


def test_a_cell_on_some_ranks_in_whatever_order(ranks, capsys):
    ranks.run_cell("print(rank)", ranks=[1, 0, 1])
    assert capsys.readouterr().out == "[rank 0] 0\n[rank 1] 1\n"
    for wrong in ([2], [-1], []):
        with pytest.raises(ValueError, match=r"from 0 to 1, at least one, not \["):
            ranks.run_cell("1", ranks=wrong)


def test_reports_arrive_in_this_thread_while_the_ranks_work(ranks):
    class Plot:
        def __init__(self):
            self.points = []

        def add(self, x, values):
            self.points.append((x, values["loss"], threading.current_thread()))

    def train(flag):
        for step in range(3):
            par.report(step=step, loss=torch.tensor(1 / (step + 1)))
        if dist.get_rank() == 0:
            while not os.path.exists(flag):  # until the notebook has seen the last report
                time.sleep(0.01)
        return step

    import tempfile

    import torch.distributed as dist

    plot = Plot()
    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder, "seen")

        def on_report(rank, values):
            if rank == 0:
                plot.add(values["step"], values)
                if values["step"] == 2:
                    flag.touch()

        assert ranks.run(train, str(flag), on_report=on_report) == [2] * N
    expected = [(step, pytest.approx(1 / (step + 1))) for step in range(3)]
    assert [point[:2] for point in plot.points] == expected
    assert {point[2] for point in plot.points} == {threading.current_thread()}


def test_reports_without_a_listener_go_nowhere(ranks):
    seen = []
    ranks.run(lambda: par.report(x=1))
    ranks.on_report = lambda rank, values: seen.append((rank, values["x"]))
    try:
        ranks.run(lambda: par.report(x=torch.ones(1)))
        ranks.run(lambda: par.report(x=3), on_report=lambda rank, values: None)
    finally:
        ranks.on_report = None
    assert sorted(seen) == [(rank, 1.0) for rank in range(N)]
    with pytest.raises(RuntimeError, match="this is no rank"):
        par.report(x=1)


def test_the_same_mistake_on_every_rank_keeps_the_ranks(ranks):
    before = [place.pid for place in ranks._engines.places]

    def mistake():
        return 1 / (x := 0) + x

    with pytest.raises(failures.RankError) as raised:
        ranks.run(mistake)
    assert str(raised.value) == "rank 0 raised ZeroDivisionError: division by zero"
    assert (raised.value.rank, raised.value.name) == (0, "ZeroDivisionError")
    assert "return 1 / (x := 0) + x" in raised.value.traceback
    assert "free again" in raised.value.__notes__[-1]
    assert [place.pid for place in ranks._engines.places] == before
    assert torch.equal(ranks.run(sum_of_ranks, 0)[0], torch.full((3,), 1.0))


def test_a_rank_starts_no_ranks_and_keeps_its_process_group(ranks):
    def start():
        par.cluster(2)

    def meet():
        with par.launch.process_group():
            pass

    with pytest.raises(failures.RankError, match="rank 0 cannot start ranks of its own"):
        ranks.run(start)
    with pytest.raises(failures.RankError, match=r"is rank 0 of a process group of 2 already"):
        ranks.run(meet)
    assert torch.equal(ranks.run(sum_of_ranks, 0)[0], torch.full((3,), 1.0))


def cluster_in(folder, monkeypatch):
    """A rank that was started where TMPDIR is this folder."""
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        return par.cluster(1)


def load():
    from torch.utils.data import DataLoader

    return [batch.tolist() for batch in DataLoader(range(5), batch_size=3, num_workers=1)]


def test_of_two_clusters_there_is_one(ranks, tmp_path, monkeypatch, capfd):
    """Restarting one that gave way to another is asking for it again.

    A terminal shows the start. Workers of a DataLoader send tensors however long TMPDIR is, and all
    that is in it goes.
    """
    long_tmpdir = tmp_path / ("x" * 90)
    long_tmpdir.mkdir()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    other = cluster_in(long_tmpdir, monkeypatch)
    shown = capfd.readouterr().err
    stages = ["1 rank: controller |", "0 of 1 processes are there |#", "process group |##"]
    assert sorted(stages, key=shown.index) == stages
    assert repr(ranks) == f"{N} ranks, ended: they were stopped"
    assert other.run(torch.distributed.get_world_size) == [1]
    assert other.run(load) == [[[0, 1, 2], [3, 4]]]
    assert ranks.restart().run(sum_of_ranks, 0)[0].tolist() == [1.0] * 3
    assert repr(other) == "1 rank, ended: they were stopped"
    assert list(long_tmpdir.iterdir()) == []
    assert par.cluster(N) is ranks


def test_the_controller_forgets_what_it_has_passed_on(ranks):
    def used_bytes():
        return sum(one.memory_info().rss for one in controllers)

    controllers = [one for one in psutil.Process().children() if "controller" in one.cmdline()]
    data = torch.ones(2_000_000)
    ranks.run(lambda x: None, data)
    before = used_bytes()
    for _ in range(15):
        ranks.run(lambda x: None, data)
    assert before > 0
    assert used_bytes() - before < 7 * N * data.nbytes


def test_nobody_without_the_key_hears_what_ranks_print(ranks, capsys):
    """Other users of the machine can reach its ports; they have not the key, which is in a file."""
    (controller,) = [one for one in psutil.Process().children() if "controller" in one.cmdline()]
    found = controller.net_connections()
    ports = {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
    security = ranks._engines.folder.path / "security"
    assert json.loads((security / "ipcontroller-client.json").read_text())["iopub"] in ports
    with zmq.Context() as context:
        outsiders = [outsider(context, port, key) for port in ports for key in (None, guess())]
        for _ in range(5):
            time.sleep(0.1)  # for a connection that should not be
            ranks.run(lambda: print("for the notebook only"))
        heard = [one for one in outsiders if one.poll(0)]
        context.destroy(linger=0)
    assert "[rank 1] for the notebook only" in capsys.readouterr().out
    assert not heard


def guess():
    return zmq.curve_keypair()[0]


def outsider(context, port, key):
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    if key is not None:
        subscriber.curve_publickey, subscriber.curve_secretkey = zmq.curve_keypair()
        subscriber.curve_serverkey = key
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    return subscriber


@pytest.mark.parametrize("key", [None, "a guessed one"])
def test_nobody_without_the_key_gives_orders(ranks, key):
    """Not even with all else that the files of the cluster say."""
    import ipyparallel

    path = ranks._engines.folder.path / "security" / "ipcontroller-client.json"
    stolen = {**json.loads(path.read_text()), "curve_serverkey": key and guess().decode()}
    with pytest.raises(TimeoutError, match="connection request timed out"):
        ipyparallel.Client(stolen, timeout=1)
    assert ranks.run(torch.distributed.get_rank) == list(range(N))


def test_ranks_that_could_not_be_encrypted_are_refused(monkeypatch):
    monkeypatch.setattr(zmq, "has", lambda feature: feature != "curve")
    with pytest.raises(RuntimeError, match=r"pyzmq .* without CURVE"):
        par.cluster(N + 1)


def test_a_syntax_error_in_a_cell_is_told(ranks):
    with pytest.raises(failures.RankError, match=r"rank 0 raised SyntaxError"):
        ranks.run_cell("x = = 1")


def test_what_cannot_be_sent_is_named(ranks):
    lock = threading.Lock()

    def locked():
        return lock

    with pytest.raises(TypeError, match=r"locked.* cannot be sent .*`lock` that cannot"):
        ranks.run(locked)
    (gpu,) = par.devices(1, kind="virtual", verbose=False)
    with pytest.raises(TypeError, match=r"vgpu:0 is a virtual GPU of .*`gpu` that cannot"):
        ranks.run(lambda: gpu)
    with pytest.raises(TypeError, match="argument 2 that cannot"):
        ranks.run(print, 1, (i for i in "ab"))
    with pytest.raises(TypeError, match=r"a variable cannot be sent .*`b` that cannot"):
        ranks.push({"a": 1, "b": lock})
    with pytest.raises(failures.RankError, match="the result, of type generator, cannot"):
        ranks.run(lambda: (i for i in "ab"))
    with pytest.raises(ValueError, match="takes a function, not 3"):
        ranks.run(3)
    with pytest.raises(ValueError, match="name of a variable, not 0"):
        ranks[0]


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
def test_a_wrong_number_of_ranks_is_named(n):
    with pytest.raises(ValueError, match=repr(n) if n is not None else "number of ranks"):
        par.cluster(n)


def test_the_package_needs_no_ipyparallel_until_ranks_are_started():
    code = """
import sys
sys.modules["ipyparallel"] = None
import d2lpar as par
par.report
try:
    par.cluster(2)
except RuntimeError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ipyparallel" in found.stdout
    assert f'pip install "{par.requirement("lessons")}"' in found.stdout


# ---- without ranks


def failure(name, message, time_s, *, lost=False):
    return wire.Failure(name, message, (), time_s, lost, False)


def test_the_culprit_is_never_a_victim():
    lost = failure("RuntimeError", "Connection closed by peer", 1.0, lost=True)
    raised = failure("ValueError", "bad batch", 2.0)
    died = failures.Death("signal 9 (SIGKILL)", 3.0)
    assert failures.culprit({0: lost, 1: raised}) == 1
    assert failures.culprit({0: lost, 2: died}) == 2
    assert failures.culprit({1: raised, 2: died}) == 1
    assert failures.culprit({0: lost, 3: lost}) == 0
    assert failures.culprit({2: failure("ValueError", "bad batch", 1.5), 1: raised}) == 1


def test_ranks_that_say_their_own_number_raise_the_same():
    def culprit(text, other=None):
        first, second = failure("ValueError", text.format(12), 1.0), other or text.format(3)
        return failures.culprit({12: first, 3: failure("ValueError", second, 2.0)})

    assert (
        culprit("rank {} cannot start ranks") == culprit("on Rank: {}!") == culprit("rank{}") == 3
    )
    assert culprit("rank {} fails", "rank 12 fails") == 12
    assert culprit("{} images are too few") == culprit("rank 1{}") == culprit("ranks {}") == 12


def test_errors_after_a_lost_connection_are_those_of_a_victim():
    def told(first, second, hide):
        try:
            try:
                raise RuntimeError(first)
            except RuntimeError as error:
                raise KeyError(second) from (None if hide else error)
        except KeyError as error:
            return worker.describe(error).lost_connection

    gloo = "[gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:1234"
    assert told(gloo, "training failed", hide=False)
    assert told(gloo, "training failed", hide=True)
    assert not told("out of data", "training failed", hide=False)


def test_output_is_whole_lines(capsys):
    one, two = Output(0), Output(1)
    two.take("stream", {"name": "stdout", "text": "a"})
    one.take("stream", {"name": "stdout", "text": "10 %\r20 %\rdo"})
    two.take("stream", {"name": "stdout", "text": "b"})
    one.take("stream", {"name": "stdout", "text": "ne\n\n"})
    two.take("execute_result", {"data": {"text/plain": "x\ny", "text/html": "<b>"}})
    two.take("status", {"execution_state": "idle"})
    show([one, two])
    expected = "[rank 0] done\n[rank 0]\n[rank 1] ab\n[rank 1] x\n[rank 1] y\n"
    assert capsys.readouterr().out == expected


def test_how_a_process_ended():
    from d2lpar.processes.cluster.starting.process_tree import describe_exit

    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "signal 9 (SIGKILL)"
    assert describe_exit(None) == "its process is gone"


def test_ending_processes_takes_their_children_along():
    from d2lpar.processes.cluster.starting import process_tree

    inner = "import time; time.sleep(600)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer]) as started:
        process = psutil.Process(started.pid)
        while not process.children():
            pass
        family = [process, *process.children()]
        process_tree.end([process])
        assert not any(map(process_tree.is_running, family))
