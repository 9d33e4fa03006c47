"""What `d2lpar run` costs: the steps of a small GPT under it, against the same program on the CPU.

Both run in one process, in turns, and processor time is compared, so that whatever else the machine
does meets both. Of a long run a short one is taken off: start-up does not count.
"""

import argparse
import contextlib
import io
import os
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from machine import this_machine

from d2lpar.vgpu.programs.launch_plan import LaunchPlan
from d2lpar.vgpu.programs.runner import run
from d2lpar.vgpu.programs.runs import RunOptions

PROGRAM = str(Path(__file__).with_name("small_gpt.py"))
GOAL = 1.5  # times the CPU's step
SHORT = 4  # steps


def plain(steps: int) -> None:
    """Run the program as `python` does."""
    arguments, sys.argv = sys.argv, [PROGRAM, str(steps)]
    try:
        runpy.run_path(PROGRAM, run_name="__main__")
    finally:
        sys.argv = arguments


def virtual(steps: int) -> None:
    """Run it as `d2lpar run` does. RuntimeError if it fails."""
    report = run(LaunchPlan(PROGRAM, (str(steps),)), RunOptions(quiet=True))
    if report.status:
        raise RuntimeError(report.error)


def step_s(program: Callable[[int], None], steps: int) -> float:
    """Seconds of processor time for one step."""
    taken = []
    for count in (SHORT, SHORT + steps):
        begin_s = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            program(count)
        taken.append(time.process_time() - begin_s)
    return (taken[1] - taken[0]) / steps


def main() -> None:
    """Print the ratio; exit with 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    os.environ["D2LPAR_BACKING"] = "cpu"
    torch.set_num_threads(1)
    for program in (plain, virtual):
        step_s(program, 1)
    pairs = [[step_s(p, options.steps) for p in (plain, virtual)] for _ in range(options.rounds)]
    cpu_s, virtual_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(there / here for here, there in pairs)
    print(this_machine())
    print(f"a step of a small GPT on the CPU: {cpu_s * 1e3:.0f} ms of processor time")
    print(f"under d2lpar run: {virtual_s * 1e3:.0f} ms, {ratio:.2f}x; goal: at most {GOAL}x")
    sys.exit(ratio > GOAL)


if __name__ == "__main__":
    main()
