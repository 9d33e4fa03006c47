"""A training step of lesson 04 beside other work: what it costs that threads spin while they wait.

Each way of waiting is tried in a process of its own, on this machine as it is and beside two
programs that never rest; what counts are the ratios, and the processor time of a step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench_vgpu import make_step, multi_gpu_from_scratch
from machine import this_machine

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from setup_env import KERNEL_ENVIRONMENT  # noqa: E402

HOGS, GOAL = 2, 4
WAYS = {
    "torch's default": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "a kernel of the course": KERNEL_ENVIRONMENT,
}


def steps(seconds: float) -> None:
    """In a process of its own: print the milliseconds of a step, and its processor time."""
    import d2lpar as par

    device, *_ = par.devices(1, kind="virtual", verbose=False)
    step = make_step(multi_gpu_from_scratch(), device)
    for _ in range(5):
        step()
    times_s = []
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin_s < seconds:
        start_s = time.perf_counter()
        step()
        times_s.append(time.perf_counter() - start_s)
    cpu_s = time.process_time() - cpu_s
    print(json.dumps([statistics.median(times_s) * 1e3, cpu_s / len(times_s) * 1e3]))


def measured(way: dict[str, str], seconds: float) -> list[float]:
    """Median milliseconds and processor milliseconds of a step."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    command = [sys.executable, __file__, "--child", str(seconds)]
    environment = clean | {"D2LPAR_BACKING": "cpu"} | way
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def beside_hogs(way: dict[str, str], seconds: float) -> list[float]:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        return measured(way, seconds)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def main() -> None:
    """Print the table; exit with 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        steps(options.child)
        return
    print(this_machine())
    print(f"{'':<24}  step, ms  beside {HOGS} hogs  ratio  processor time, ms")
    for name, way in WAYS.items():
        quiet, loaded = measured(way, options.seconds), beside_hogs(way, options.seconds)
        ratio = loaded[0] / quiet[0]
        print(
            f"{name:<24}  {quiet[0]:8.1f}  {loaded[0]:13.1f}  {ratio:5.1f}"
            f"  {quiet[1]:.1f}; {loaded[1]:.1f}"
        )
    met = ratio <= GOAL
    print(f"goal: at most {GOAL} times a quiet step, {'met' if met else 'MISSED'}")
    sys.exit(not met)


if __name__ == "__main__":
    main()
