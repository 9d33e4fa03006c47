"""Records how many steps a perceptron needs to a target accuracy, with 4 to 2,048 images a step.

    python tools/batch_sizes.py [--data FOLDER]

writes batch_sizes.csv (batch_sizes_real.csv) in notebooks/recorded: a row per batch size, learning
rate and seed, with the steps after which the accuracy on 1,000 test images was first seen at the
target (one looks every five per cent of the steps so far); nan if it was not within the steps
allowed, or not within the best steps so far of the same batch and seed. Rows that a table holds
already are kept. On a slow core that takes about half an hour. In the stored table seed 0 was run
with the rates in rising order and without the limit of 10,000 steps.
"""

import argparse
from math import inf, isnan, nan
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import d2lpar as par
from d2lpar import recorded

RECORDED = Path(__file__).resolve().parent.parent / "notebooks" / "recorded"
BATCHES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
RATES = (0.2, 0.1, 0.4, 0.05, 0.8, 0.025)  # the likely ones first: they bound the others
SEEDS = range(2)
TARGET, TEST_IMAGES = 0.80, 1000
MOST_IMAGES, MOST_STEPS = 2_000_000, 10_000
COLUMNS = ("batch", "lr", "seed", "steps")


def steps_to_target(batch, lr, seed, data, most_steps):
    """Steps of SGD until the accuracy is at the target; nan if not within `most_steps`."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr)
    train, test = par.fashion_mnist(
        batch, root=data, seed=seed, test_size=TEST_IMAGES, drop_last=True
    )
    steps = 0
    while True:
        for X, y in train:
            if steps >= most_steps:
                return nan
            optimizer.zero_grad()
            F.cross_entropy(net(X), y).backward()
            optimizer.step()
            steps += 1
            if steps % max(1, steps // 20) == 0 and accuracy(net, test) >= TARGET:
                return steps


@torch.no_grad()
def accuracy(net, test):
    return (net(test.X).argmax(1) == test.y).float().mean().item()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="synthetic", help="a folder with images")
    options = parser.parse_args()
    real = options.data != "synthetic"
    table = recorded.Recorder(
        RECORDED / ("batch_sizes_real.csv" if real else "batch_sizes.csv"),
        COLUMNS,
        key=COLUMNS[:3],
        told=[
            "python tools/batch_sizes.py" + (" --data FOLDER" if real else ""),
            f"steps of a perceptron with 256 hidden units to an accuracy of {TARGET}",
        ],
    )
    for seed in SEEDS:
        for batch in BATCHES:
            best = inf
            for lr in RATES:
                if table.has(batch, lr, seed):
                    continue
                most = min(best, MOST_IMAGES // batch, MOST_STEPS)
                steps = steps_to_target(batch, lr, seed, options.data, most)
                best = best if isnan(steps) else min(best, steps)
                table.add([(batch, lr, seed, steps)])
                print(batch, lr, seed, steps, flush=True)


if __name__ == "__main__":
    main()
