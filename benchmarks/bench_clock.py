"""What simulating costs: operations a second over 1 to 64 devices, a million of them, a ResNet-50.

Only shapes are computed. An operation is an addition on the next device in turn; the host never
waits, so that all of them are under way at the same time.
"""

import statistics
import time

import psutil
import torch
import torchvision
from machine import this_machine

import d2lpar as par

DEVICES = (1, 2, 4, 8, 16, 32, 64)
OPERATIONS, REPEATS = 4_000, 5
MANY = 1_000_000
OPERATION_GOAL_US = 40
SLOWER_GOAL = 1.25  # an operation on 8 devices against one on 1
GROWTH_GOAL_MIB = 64
RESNET_GOAL_S = 1.0


def operation_us(n: int, operations: int = OPERATIONS) -> float:
    """Microseconds an operation with n devices in turn, the median of some repeats."""
    with par.simulate("16x-v100-nvswitch", n) as gpus:
        tensors = [torch.empty(1000, device=gpu) for gpu in gpus]
        turns = [tensors[i % n] for i in range(operations)]
        times_s = []
        for _ in range(REPEATS):
            start_s = time.perf_counter()
            for x in turns:
                x.add_(x)
            times_s.append(time.perf_counter() - start_s)
            par.timing.synchronize(gpus)
    return statistics.median(times_s) / operations * 1e6


def growth_bytes() -> int:
    """By how much the process grows over a million operations without a wait."""
    process = psutil.Process()
    with par.simulate("8x-v100-pcie", 2) as gpus:
        tensors = [torch.empty(1000, device=gpu) for gpu in gpus]
        for part in range(2):
            for i in range(MANY if part else 20_000):
                tensors[i % 2].add_(1)
            if not part:
                before = process.memory_info().rss
    return process.memory_info().rss - before


def resnet50_s() -> float:
    """Seconds of this computer for a training step of 120 images."""
    with par.simulate("2x-v100-textbook", 1) as (gpu,):
        net = torchvision.models.resnet50().to(gpu)
        X, y = torch.empty(120, 3, 128, 128, device=gpu), torch.zeros(120, dtype=int, device=gpu)
        times_s = []
        for _ in range(REPEATS + 1):
            start_s = time.perf_counter()
            torch.nn.functional.cross_entropy(net(X), y).backward()
            times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:])


def main() -> None:
    """Print the table; exit with 1 where a goal is missed."""
    torch.set_num_threads(1)
    print(f"the simulated clock on {this_machine()}")
    each_us = {n: operation_us(n) for n in DEVICES}
    for n, us in each_us.items():
        print(f"{f'operations a second, {n} device(s)':<44}{1e6 / us:>12,.0f}  ({us:.1f} µs each)")
    met = [
        _tell("an operation, 1 device", each_us[1], "µs", OPERATION_GOAL_US),
        _tell("  8 devices against 1", each_us[8] / each_us[1], "times", SLOWER_GOAL),
        _tell("growth over a million operations", growth_bytes() / 2**20, "MiB", GROWTH_GOAL_MIB),
        _tell("a step of ResNet-50, 120 images", resnet50_s(), "s", RESNET_GOAL_S),
    ]
    raise SystemExit(not all(met))


def _tell(what: str, value: float, unit: str, goal: float) -> bool:
    verdict = "met" if value <= goal else "MISSED"
    print(f"{what:<44}{value:>8.2f} {unit}  target: at most {goal} {unit}: {verdict}")
    return value <= goal


if __name__ == "__main__":
    main()
