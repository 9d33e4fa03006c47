"""What ranks in a notebook cost: starting, a call, a cell, a training step, a report, a death."""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from machine import this_machine

import d2lpar as par
from d2lpar.processes.cluster.failures import RankError

ROOT = Path(__file__).resolve().parents[1]
N = 2
NBDISTRIBUTED_S = 30  # published: what its notebook waits for before it names a dead worker
GOAL_S = 2

STEPS = '''
def steps_s(warm_up, count):
    """Seconds a training step on this process takes, without the other ranks."""
    import statistics, time
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    x = torch.rand(64, 512)
    taken_s = []
    for _ in range(warm_up + count):
        start_s = time.perf_counter()
        net.zero_grad()
        net(x).square().sum().backward()
        for parameter in net.parameters():
            parameter.data -= 1e-3 * parameter.grad
        taken_s.append(time.perf_counter() - start_s)
    return statistics.median(taken_s[warm_up:])
'''


def seconds(function, repeats: int) -> float:
    """Median over `repeats` calls, after one."""
    taken_s = []
    for _ in range(repeats + 1):
        start_s = time.perf_counter()
        function()
        taken_s.append(time.perf_counter() - start_s)
    return statistics.median(taken_s[1:])


def reports_us(count):
    for _ in range(count // 10):
        par.report(step=0, loss=0.5)
    start_s = time.perf_counter()
    for step in range(count):
        par.report(step=step, loss=0.5)
    return (time.perf_counter() - start_s) / count * 1e6


def train_on():
    import torch.distributed as dist

    par.report(begun=True)
    for _ in range(10**9):
        dist.all_reduce(torch.ones(1000))


def death_s(ranks) -> float:
    """Seconds from the SIGKILL of a rank to the error in the cell, the survivors ended."""
    killed_s = []

    def kill():
        os.kill(ranks._engines.places[1].pid, signal.SIGKILL)
        killed_s.append(time.perf_counter())

    def on_report(rank, _):
        if rank == 1:
            threading.Timer(0.3, kill).start()

    with contextlib.suppress(RankError):
        ranks.run(train_on, on_report=on_report)
    return time.perf_counter() - killed_s[0]


def bare_step_s() -> float:
    code = f"{STEPS}\ntorch.set_num_threads(1)\nprint(steps_s(20, 200))"
    found = subprocess.run(
        [sys.executable, "-c", f"import torch\n{code}"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return float(found.stdout)


def row(what: str, value: float, unit: str, note: str = "") -> None:
    print(f"{what:<58}{value:>9.2f} {unit:<3} {note}".rstrip())


def main() -> None:
    """Print the table; exit with 1 where a death takes longer to fail the cell than the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{N} ranks on {this_machine()}")
    begun_s = time.perf_counter()
    with par.cluster(N) as ranks:
        row("start, ipyparallel imported for the first time", time.perf_counter() - begun_s, "s")
        row("restart", statistics.median(restart_s(ranks) for _ in range(rounds)), "s")
        row("run() of an empty function", 1e3 * seconds(lambda: ranks.run(int), 100), "ms")
        row("%%px of an empty cell", 1e3 * seconds(lambda: ranks.run_cell("pass"), 100), "ms")
        row("report(), on the rank", max(ranks.run(reports_us, 2000, on_report=ignore)), "us")
        row("report() that nobody listens to", max(ranks.run(reports_us, 2000)), "us")
        names = {"__name__": "__main__"}
        exec(STEPS, names)
        on_rank_s, bare_s = zip(
            *((run_alone(ranks, names["steps_s"]), bare_step_s()) for _ in range(rounds)),
            strict=True,
        )
        ratio = statistics.median(a / b for a, b in zip(on_rank_s, bare_s, strict=True))
        row("a training step on a rank, others idle", 1e3 * statistics.median(on_rank_s), "ms")
        row("the same in a bare process", 1e3 * statistics.median(bare_s), "ms", f"{ratio:.2f}x")
        deaths_s = []
        for _ in range(rounds):
            deaths_s.append(death_s(ranks))
            ranks.restart()
    worst_s = max(deaths_s)
    met = "met" if worst_s <= GOAL_S else "MISSED"
    row("from a rank's death to the failed cell, the worst", worst_s, "s", f"{GOAL_S} s: {met}")
    row("nbdistributed, published", NBDISTRIBUTED_S, "s", f"{NBDISTRIBUTED_S / worst_s:.0f}x")
    raise SystemExit(worst_s > GOAL_S)


def run_alone(ranks, steps_s) -> float:
    """The step on rank 0 only, as a bare process would have the machine to itself."""
    ranks.push({"steps_s": steps_s, "taken_s": None})
    ranks.run_cell("taken_s = steps_s(20, 200)", ranks=[0])
    return ranks["taken_s"][0]


def restart_s(ranks) -> float:
    start_s = time.perf_counter()
    ranks.restart()
    return time.perf_counter() - start_s


def ignore(_rank, _values) -> None:
    pass


if __name__ == "__main__":
    main()
