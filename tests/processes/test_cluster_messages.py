"""All that ranks report and print arrives, however late, or a line says what is missing."""

import os
import signal
import time
from importlib.util import find_spec

import pytest

import d2lpar as par
from d2lpar.processes.cluster.failures import RankError

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

N = 2
SLOW_S = 0.05  # of a callback that draws


class Seen:
    """What each rank has reported; every report takes its time."""

    def __init__(self, each_s=0.0):
        self.values, self._each_s = {rank: [] for rank in range(N)}, each_s

    def __call__(self, rank, values):
        self.values[rank].append(values["i"])
        time.sleep(self._each_s)


def report(count, then=None):
    for i in range(count):
        par.report(i=i)
    if then is not None:
        raise ValueError(then)


def all_of(count):
    return {rank: list(range(count)) for rank in range(N)}


def test_a_slow_callback_gets_all_reports(ranks):
    seen = Seen(SLOW_S / 10)  # 3 s in all, long after the ranks are done
    ranks.run(report, 300, on_report=seen)
    assert seen.values == all_of(300)


def test_also_of_ranks_that_raise_and_they_stay(ranks):
    seen = Seen(SLOW_S)
    with pytest.raises(RankError, match="rank 0 raised ValueError: at last") as raised:
        ranks.run(report, 30, "at last", on_report=seen)
    assert seen.values == all_of(30)
    assert "free again" in raised.value.__notes__[-1]


def test_also_of_ranks_that_die(ranks):
    def report_and_die():
        report(30)
        time.sleep(1)  # ipykernel sends in a thread
        os.kill(os.getpid(), signal.SIGKILL)

    seen = Seen(SLOW_S)
    with pytest.raises(RankError, match=r"rank \d died: signal 9"):
        ranks.run(report_and_die, on_report=seen)
    assert seen.values == all_of(30)


def test_reports_without_end_do_not_keep_a_call_that_failed(ranks):
    def report_on():
        if rank == 1:  # noqa: F821
            raise ValueError("bad batch")
        while True:
            par.report(i=0)
            time.sleep(0.01)

    with pytest.raises(RankError, match="rank 1 raised ValueError: bad batch") as raised:
        ranks.run(as_in_a_notebook(report_on), on_report=Seen(SLOW_S / 2))
    assert "other ranks were ended" in raised.value.__notes__[-1]


def as_in_a_notebook(function):
    """The function with globals of its own, among which it finds its rank's names."""
    import types

    names = {"__name__": "__main__", "par": par, "time": time}
    return types.FunctionType(function.__code__, names, function.__name__)


def test_an_interrupt_while_reports_wait_keeps_the_ranks(ranks, interrupts):
    before = ranks.run(os.getpid)
    seen = Seen(SLOW_S)

    def interrupted(rank, values):
        seen(rank, values)
        if len(seen.values[rank]) == 20:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)  # where the interrupt comes, as in any cell

    with pytest.raises(KeyboardInterrupt):
        ranks.run(report, 1000, on_report=interrupted)
    assert len(seen.values[0]) <= 20
    assert ranks.run(os.getpid) == before


def test_a_line_says_how_many_messages_are_missing(ranks, capsys):
    """A rank whose connection fails is played by one that throws every second report away."""

    def report_to_nobody(count):
        from IPython import get_ipython

        class Nowhere:
            def send_multipart(self, *args, **kwargs):
                pass

        publisher = get_ipython().data_pub
        sockets = [publisher.pub_socket, Nowhere()]
        for i in range(count):
            publisher.pub_socket = sockets[i % 2]
            par.report(i=i)
        publisher.pub_socket = sockets[0]

    seen = Seen()
    ranks.run(report_to_nobody, 10, on_report=seen)
    assert seen.values == {rank: [0, 2, 4, 6, 8] for rank in range(N)}
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" messages")[0] for line in lines] == [
        f"[rank {rank}] 5 of 10" for rank in range(N)
    ]


@pytest.mark.slow
def test_forty_thousand_reports_arrive(ranks):
    seen = Seen()
    ranks.run(report, 20_000, on_report=seen)
    assert seen.values == all_of(20_000)


@pytest.mark.slow
def test_two_hundred_thousand_lines_arrive(ranks, capsys):
    def talk(count):
        for i in range(count):
            print(i, flush=True)

    ranks.run(talk, 100_000)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == "".join(f"[rank {r}] {i}\n" for r in range(N) for i in range(100_000))
