"""What `d2lpar run` costs: the steps of a small GPT under it, against the same program on the CPU.

They run in turns, and processor time is compared, of all their processes, so that whatever else the
machine does meets both. Of a long run a short one is taken off: start-up does not count.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from machine import this_machine

PROGRAM = str(Path(__file__).with_name("small_gpt.py"))
GOAL = 1.5  # times the CPU's step
SHORT = 4  # steps


PLAIN, VIRTUAL = [], ["-m", "d2lpar", "run", "--quiet"]


def processor_s() -> float:
    """What ended processes that this one has started have used of the processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def step_s(words: list[str], steps: int) -> float:
    """Seconds of processor time for one step of `python words PROGRAM`."""
    taken = []
    for count in (SHORT, SHORT + steps):
        begin_s = processor_s()
        command = [sys.executable, *words, PROGRAM, str(count)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(processor_s() - begin_s)
    return (taken[1] - taken[0]) / steps


def main() -> None:
    """Print the ratio; exit with 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    os.environ |= {"D2LPAR_BACKING": "cpu", "OMP_NUM_THREADS": "1"}
    pairs = [
        [step_s(words, options.steps) for words in (PLAIN, VIRTUAL)] for _ in range(options.rounds)
    ]
    cpu_s, virtual_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(there / here for here, there in pairs)
    print(this_machine())
    print(f"a step of a small GPT on the CPU: {cpu_s * 1e3:.0f} ms of processor time")
    print(f"under d2lpar run: {virtual_s * 1e3:.0f} ms, {ratio:.2f}x; goal: at most {GOAL}x")
    sys.exit(ratio > GOAL)


if __name__ == "__main__":
    main()
