"""What drawing one more point of a live plot costs, against `d2l.Animator.add`.

Both run inside a real Jupyter kernel, and the clock stops when the client has received every
picture, so that making, encoding, sending and receiving them all count. The two take turns in
short rounds, and the ratio is the median over the rounds: other work on the machine, which comes
and goes, then cannot fall on one of them alone. Run it with

    python benchmarks/bench_plots.py

It exits with an error if an update is not at least 3 times cheaper than the textbook's, or if the
last costs twice what the fifth did: it may cost a little more, as longer lines are drawn, but not
more and more.
"""

import json
import statistics
import sys
import time

from jupyter_client.manager import start_new_kernel
from machine import this_machine

ROUNDS = 10
UPDATES = 50  # in a round, so that the last is the 500th
ANIMATOR_UPDATES = 10  # its updates cost more with every point: the first 100 are in its favour
TARGET_RATIO = 3.0
TARGET_GROWTH = 2.0
TIMEOUT_S = 300

ANIMATOR = """
from d2l import torch as d2l
plot = d2l.Animator(xlabel="epoch", xlim=[0, 10], ylim=[0, 1],
                    legend=["train loss", "train accuracy", "test accuracy"])
def add(x, values):
    plot.add(x, values)
"""

LIVE_PLOT = """
from d2lpar.plots import LivePlot
NAMES = "train loss", "train accuracy", "test accuracy"
plot = LivePlot(curves=NAMES, xlabel="epoch", xlim=(0, 10), ylim=(0, 1), note="synthetic images",
                max_fps=float("inf"))
plot.__enter__()
def add(x, values):
    plot.add(x, dict(zip(NAMES, values)))
"""

LOOP = """
import json, math, time
seconds = []
for i in range({first}, {first} + {updates}):
    x = 10 * i / ({rounds} * {updates})
    values = math.exp(-x / 3), 1 - math.exp(-x / 3), 0.9 - 0.9 * math.exp(-x / 3)
    start = time.perf_counter()
    add(x, values)
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
"""


def run_cell(client, code: str) -> tuple[str, float, int]:
    """(what was printed, seconds until all output had arrived, bytes of pictures) of a cell."""
    printed, picture_bytes = [], 0

    def collect(message):
        nonlocal picture_bytes
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            printed.append(content["text"])
        if message["msg_type"] in ("display_data", "update_display_data"):
            picture_bytes += sum(len(str(data)) for data in content["data"].values())

    start = time.perf_counter()
    reply = client.execute_interactive(code, output_hook=collect, timeout=TIMEOUT_S)
    seconds = time.perf_counter() - start
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"{reply['content']['ename']}: {reply['content']['evalue']}")
    return "".join(printed), seconds, picture_bytes


class Plotter:
    """A kernel with one of the two plots in it, and the costs of its updates so far."""

    def __init__(self, name: str, setup: str, *, updates: int):
        self.name, self.updates = name, updates
        self.manager, self.client = start_new_kernel(
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],  # or every kernel warns of its local sockets
        )
        self.each_s: list[float] = []  # in the kernel, update by update
        self.round_s: list[float] = []  # an update, until received, round by round
        self.picture_bytes = 0
        run_cell(self.client, setup)

    def run_round(self) -> None:
        loop = LOOP.format(first=len(self.each_s), updates=self.updates, rounds=ROUNDS)
        printed, seconds, picture_bytes = run_cell(self.client, loop)
        self.each_s += json.loads(printed.strip().splitlines()[-1])
        self.round_s.append(seconds / self.updates)
        self.picture_bytes += picture_bytes

    def near(self, i: int) -> float:
        """Median cost of the ten updates around the i-th, in seconds."""
        return statistics.median(self.each_s[max(0, i - 5) : i + 5])

    def row(self) -> str:
        last = len(self.each_s)
        update_s, update_bytes = statistics.median(self.round_s), self.picture_bytes / last
        costs = f"{1e3 * update_s:14.1f}{update_bytes / 1e3:14.1f}{1e3 * self.near(5):10.1f}"
        return f"{self.name:24}{costs}{1e3 * self.near(last):10.1f} ({last}th)"

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def main() -> int:
    theirs = Plotter("d2l.Animator.add", ANIMATOR, updates=ANIMATOR_UPDATES)
    ours = Plotter("LivePlot.add", LIVE_PLOT, updates=UPDATES)
    try:
        for _ in range(ROUNDS):
            theirs.run_round()
            ours.run_round()
    finally:
        theirs.stop()
        ours.stop()
    ratios = [their / our for their, our in zip(theirs.round_s, ours.round_s, strict=True)]
    ratio, growth = statistics.median(ratios), ours.near(ROUNDS * UPDATES) / ours.near(5)
    print(f"a live plot on {this_machine()}")
    print(f"{'':24}{'ms an update':>14}{'kB an update':>14}{'5th, ms':>10}{'last, ms':>10}")
    print(theirs.row(), ours.row(), sep="\n")
    print(f"LivePlot is {ratio:.1f}x cheaper (at least {TARGET_RATIO:g}x wanted;", end=" ")
    print(f"{min(ratios):.1f} to {max(ratios):.1f} over the rounds);")
    print(f"its {ROUNDS * UPDATES}th update costs {growth:.2f}x of its 5th", end=" ")
    print(f"(at most {TARGET_GROWTH:g}x wanted)")
    return 0 if ratio >= TARGET_RATIO and growth <= TARGET_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
