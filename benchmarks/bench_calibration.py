"""How well a calibration predicts this machine: programs simulated on it and measured on it.

Calibrates, simulates each program on "this machine", then measures it, all in one process with one
thread. The ratio is simulated over measured time. Adding in place is faster than simulated: a copy,
from which the memory's rate comes, likely fetches the lines that it overwrites, too.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from machine import this_machine
from torch import nn
from torch.nn import functional as F

import d2lpar as par

LONGEST_S = 20
MOST_ERROR = 0.25  # median over the programs


def product(device: torch.device, n: int) -> Callable[[], object]:
    A = torch.ones(n, n, device=device)
    return lambda: A @ A


def addition(device: torch.device, n: int) -> Callable[[], object]:
    x, y = torch.ones(n, device=device), torch.ones(n, device=device)
    return lambda: x.add_(y)


def small_operations(device: torch.device, count: int) -> Callable[[], object]:
    x = torch.ones(10, device=device)
    return lambda: [x.add_(1) for _ in range(count)]


def mlp_step(device: torch.device, batch: int) -> Callable[[], object]:
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    X = torch.rand(batch, 784).to(device)
    y = torch.randint(10, (batch,)).to(device)
    return lambda: F.cross_entropy(net(X), y).backward()


PROGRAMS = {
    "product of 512 x 512": (product, 512),
    "product of 1024 x 1024": (product, 1024),
    "product of 2000 x 2000": (product, 2000),
    "1,000 smallest operations": (small_operations, 1000),
    "adding 200 MB to 200 MB": (addition, 50 * 10**6),
    "perceptron, batch 256": (mlp_step, 256),
}


def simulated_s(program: Callable, size: int, machine: par.machines.Machine) -> float:
    with par.simulate(machine) as (device,):
        work = program(device, size)
        return par.measure(work, repeats=3, devices=device).median_s


def measured_s(program: Callable, size: int) -> float:
    """The fastest of many repeats: the calibration's rates are those of the fastest, too."""
    return min(par.measure(program(torch.device("cpu"), size), repeats=25, devices="cpu").times_s)


def main() -> None:
    """Print the table; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="budget of the calibration")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    calibration = par.calibrate(budget_s=options.seconds, device="cpu")
    took_s = time.perf_counter() - start
    print(f"a calibration of {this_machine()}")
    print(calibration)
    print(f"\n{'':<28}{'simulated':>12}{'measured':>12}{'ratio':>8}")
    errors = []
    for name, (program, size) in PROGRAMS.items():
        predicted = simulated_s(program, size, calibration.machine())
        found = measured_s(program, size)
        errors.append(abs(predicted / found - 1))
        print(
            f"{name:<28}{predicted * 1e3:>9.2f} ms{found * 1e3:>9.2f} ms{predicted / found:>8.2f}"
        )
    error = statistics.median(errors)
    print(f"{'median error':<28}{error:>11.0%}  target: at most {MOST_ERROR:.0%}")
    print(f"{'calibrating':<28}{took_s:>10.1f} s  target: at most {LONGEST_S} s")
    raise SystemExit(error > MOST_ERROR or took_s > LONGEST_S)


if __name__ == "__main__":
    main()
