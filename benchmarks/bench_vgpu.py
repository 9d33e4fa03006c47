"""What a virtual GPU costs on this machine: a LeNet step against plain CPU, an operation of shapes.

Both run the same step (batch 256, forward, backward, SGD by hand) in one process, in turns, so that
whatever else the machine does meets both; medians are compared.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from machine import this_machine
from torch.nn import functional as F

import d2lpar as par

BATCH = 256
STEP_GOAL = 1.15  # times the CPU's step
OPERATION_GOAL_US = 40
SHAPES = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (128, 800), (128,), (10, 128), (10,)]


def lenet(X: torch.Tensor, params: list[torch.Tensor]) -> torch.Tensor:
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)
    h = F.avg_pool2d(F.relu(F.conv2d(h, W2, b2)), 2).flatten(1)
    return F.linear(F.relu(F.linear(h, W3, b3)), W4, b4)


def make_step(device: torch.device | str) -> Callable[[], None]:
    """One training step on fixed data, to be called again and again."""
    torch.manual_seed(0)
    params = [(torch.randn(s) * 0.1).to(device).requires_grad_() for s in SHAPES]
    X = torch.rand(BATCH, 1, 28, 28).to(device)
    y = torch.randint(10, (BATCH,)).to(device)

    def step() -> None:
        F.cross_entropy(lenet(X, params), y, reduction="none").sum().backward()
        with torch.no_grad():
            for p in params:
                p -= 0.1 / BATCH * p.grad
                p.grad.zero_()

    return step


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(steps: list[Callable[[], None]], rounds: int) -> list[float]:
    """Median seconds of each step, taken in turns after three rounds that do not count."""
    times = [[seconds(step) for step in steps] for _ in range(rounds + 3)]
    return [statistics.median(column) for column in zip(*times[3:], strict=True)]


def operation_us(device: torch.device, rounds: int) -> float:
    """Microseconds that it takes to simulate an operation when only shapes are computed."""
    with par.shape_only():
        step = make_step(device)
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
    cpu_s, virtual_s = compare([make_step("cpu"), make_step(device)], options.rounds)
    ratio, each_us = virtual_s / cpu_s, operation_us(device, options.rounds)
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
