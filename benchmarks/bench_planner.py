"""What a ranking of mixes costs: the first time in a process, and again as a slider moves.

The first time each size of a layer is simulated; later they are known. Seconds are the
processor's, as machines are shared.
"""

import os
import subprocess
import sys
import time

from machine import this_machine

from d2lpar import planner

SMALL = ("gpt-3-13b", "8x-h200-nvswitch", 256)
LARGE = ("megatron-1008b", "384x8x-a100-80gb-nvswitch-8xib-hdr", 3072)
REPEATS = 10
COLD_GOAL_S = 3.0
WARM_GOAL_S = 0.3
COLD = """
import sys, time
from d2lpar import planner
start_s = time.process_time()
planner.plans(sys.argv[1], sys.argv[2], batch=int(sys.argv[3]), zero=None)
print(time.process_time() - start_s)
"""


def cold_s(model: str, machine: str, batch: int) -> float:
    """Seconds of the first call in a process of its own, imports left out."""
    found = subprocess.run(
        [sys.executable, "-c", COLD, model, machine, str(batch)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout)


def warm_s(model: str, machine: str, batch: int) -> tuple[float, int]:
    """The least seconds of some calls, each with another batch; and the number of mixes."""
    planner.plans(model, machine, batch=batch, zero=None)
    times_s = []
    for i in range(1, REPEATS + 1):
        start_s = time.process_time()
        found = planner.plans(model, machine, batch=batch * i, zero=None)
        times_s.append(time.process_time() - start_s)
    return min(times_s), len(found)


def main() -> None:
    """Print the table; exit with 1 where a goal is missed."""
    print(f"plans on {this_machine()}")
    met = []
    for model, machine, batch in (SMALL, LARGE):
        again_s, count = warm_s(model, machine, batch)
        print(f"{model} on {machine}: {count} mixes, ZeRO stages 0 to 3")
        met.append(_tell("  first call in a process", cold_s(model, machine, batch), COLD_GOAL_S))
        met.append(_tell("  with another batch, as a slider moves", again_s, WARM_GOAL_S))
    raise SystemExit(not all(met))


def _tell(what: str, seconds: float, goal_s: float) -> bool:
    verdict = "met" if seconds <= goal_s else "MISSED"
    print(f"{what:<42}{seconds:>8.3f} s  target: at most {goal_s} s: {verdict}")
    return seconds <= goal_s


if __name__ == "__main__":
    main()
