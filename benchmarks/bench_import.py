"""What `import d2lpar` costs above `import torch`: medians of fresh processes, taken in turns."""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import this_machine

GOAL_S = 0.3
ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("import torch", "import torch, d2lpar")


def process_s(code: str) -> float:
    """Seconds that a fresh Python takes to run `code`."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    return time.perf_counter() - start


def main() -> None:
    """Print the table; exit with 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rounds = [[process_s(code) for code in PROGRAMS] for _ in range(options.rounds + 1)]
    torch_s, both_s = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    print(f"imports on {this_machine()}")
    for code, seconds in zip(PROGRAMS, (torch_s, both_s), strict=True):
        print(f"{code:<44}{seconds:>9.2f} s")
    extra_s = statistics.median(both - alone for alone, both in rounds[1:])
    met = "met" if extra_s <= GOAL_S else "MISSED"
    print(f"{'  difference':<44}{extra_s:>9.2f} s  target: at most {GOAL_S} s: {met}")
    raise SystemExit(extra_s > GOAL_S)


if __name__ == "__main__":
    main()
