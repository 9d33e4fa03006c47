"""What a virtual GPU costs on this machine: a LeNet step against plain CPU, an operation of shapes.

Both run the step of lesson 04 (batch 256, forward, backward, SGD by hand) in one process, in turns,
so that whatever else the machine does meets both; medians are compared.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from machine import this_machine
from torch import nn
from torch.nn import functional as F

import d2lpar as par

BATCH = 256
STEP_GOAL = 1.15  # times the CPU's step
OPERATION_GOAL_US = 30


def multi_gpu_from_scratch() -> SimpleNamespace:
    """The functions that the lesson's cells define."""
    sys.path.append(str(Path(__file__).parents[1] / "tools"))
    from cells import functions

    loss = nn.CrossEntropyLoss(reduction="none")
    return functions("04", torch=torch, F=F, par=par, loss=loss)


def make_step(lesson: SimpleNamespace, device: torch.device | str) -> Callable[[], None]:
    """One training step of lesson 04 on fixed data, to be called again and again."""
    torch.manual_seed(0)
    replica = lesson.get_params(lesson.init_params(scale=0.1), device)
    X = torch.rand(BATCH, 1, 28, 28).to(device)
    y = torch.randint(10, (BATCH,)).to(device)
    return lambda: lesson.train_batch(X, y, [replica], [device], 0.1)


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(steps: list[Callable[[], None]], rounds: int) -> list[float]:
    """Median seconds of each step, taken in turns after three rounds that do not count."""
    times = [[seconds(step) for step in steps] for _ in range(rounds + 3)]
    return [statistics.median(column) for column in zip(*times[3:], strict=True)]


def operation_us(lesson: SimpleNamespace, device: torch.device, rounds: int) -> float:
    """Microseconds that it takes to simulate an operation when only shapes are computed."""
    with par.shape_only():
        step = make_step(lesson, device)
        step()
        with par.record() as timeline:
            step()
        operations = len(timeline.on("host", "dispatch"))
        return statistics.median(seconds(step) for _ in range(rounds)) / operations * 1e6


def main() -> None:
    """Print the table; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    os.environ["D2LPAR_BACKING"] = "cpu"
    torch.set_num_threads(1)
    device, *_ = par.devices(2, kind="virtual", verbose=False)
    lesson = multi_gpu_from_scratch()
    steps = [make_step(lesson, place) for place in ("cpu", device)]
    cpu_s, virtual_s = compare(steps, options.rounds)
    ratio, each_us = virtual_s / cpu_s, operation_us(lesson, device, options.rounds)
    print(f"virtual GPUs on {this_machine()}")
    print(f"{'LeNet step, batch 256, plain CPU':<40}{cpu_s * 1e3:>8.2f} ms")
    print(f"{'LeNet step, batch 256, one vgpu':<40}{virtual_s * 1e3:>8.2f} ms")
    met = _tell("  ratio", f"{ratio:.3f}   ", ratio <= STEP_GOAL, f"at most {STEP_GOAL}")
    goal = f"at most {OPERATION_GOAL_US} µs"
    met &= _tell(
        "an operation in shape_only()", f"{each_us:.1f} µs", each_us <= OPERATION_GOAL_US, goal
    )
    raise SystemExit(not met)


def _tell(what: str, value: str, met: bool, goal: str) -> bool:
    print(f"{what:<40}{value:>11}  target: {goal}: {'met' if met else 'MISSED'}")
    return met


if __name__ == "__main__":
    main()
