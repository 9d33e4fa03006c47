"""What mixed precision costs on a virtual GPU: a step in fp16 against the same in fp32.

Most processors have no instructions for products in fp16, and lessons and programs use
`torch.autocast` all the same. Both steps run in one process, in turns; medians are compared.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
from machine import this_machine
from torch import nn
from torch.nn import functional as F

import d2lpar as par

GOAL = 1.5  # times the step in fp32
BATCH, WIDTH = 16, 64


def make_step(device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    """A training step of a small convolutional network, products in `dtype`."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    parts += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(WIDTH, 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    images = torch.rand(BATCH, 3, 32, 32).to(device)
    labels = torch.randint(10, (BATCH,)).to(device)

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    """Print the ratios; exit with 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    os.environ["D2LPAR_BACKING"] = "cpu"
    torch.set_num_threads(1)
    device, *_ = par.devices(1, kind="virtual", verbose=False)
    steps = [make_step(device, t) for t in (torch.float32, torch.float16, torch.bfloat16)]
    times = [[seconds(step) for step in steps] for _ in range(options.rounds + 2)]
    single_s, half_s, brain_s = (statistics.median(c) for c in zip(*times[2:], strict=True))
    print(this_machine())
    print(f"a step in fp32: {single_s * 1e3:.0f} ms; goal of the others: at most {GOAL}x")
    print(f"in fp16: {half_s / single_s:.2f}x, in bf16: {brain_s / single_s:.2f}x")
    sys.exit(max(half_s, brain_s) > GOAL * single_s)


if __name__ == "__main__":
    main()
