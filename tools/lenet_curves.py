"""Records how lesson 04's LeNet learns on one and two devices, at the textbook's size.

    python tools/lenet_curves.py                  # 60,000 synthetic images, batches of 256
    python tools/lenet_curves.py --data FOLDER    # Fashion-MNIST, or what there is of it

write lenet_curves.csv and lenet_curves_real.csv in notebooks/recorded: a row per tenth of a run.
A run takes 2,350 steps, as ten epochs of the textbook do. Batches have 256 images if there are
60,000 images, and 16 if there are fewer. Runs that a table holds already are kept. On a slow core
a run of full size takes about five minutes. The functions are those of the lesson's cells.
"""

import argparse
from itertools import islice
from pathlib import Path

import cells
import torch
from torch.nn import functional as F

import d2lpar as par
from d2lpar import recorded

RECORDED = Path(__file__).resolve().parent.parent / "notebooks" / "recorded"
COLUMNS = ("devices", "batch", "images", "seed", "step", "accuracy")
KEY = COLUMNS[:4]
FULL_SIZE, LARGE_BATCH, SMALL_BATCH = 60_000, 256, 16
STEPS, PARTS, LR, SEED = 2_350, 10, 0.2, 0


def curve(lesson, n, batch, data):
    """Yields (step, test accuracy) ten times."""
    torch.manual_seed(SEED)
    devices = par.devices(n, verbose=False)
    params = lesson.init_params()
    replicas = [lesson.get_params(params, device) for device in devices]
    train, test = par.fashion_mnist(batch, root=data, seed=SEED)
    batches = endless(train)
    for step in range(STEPS // PARTS, STEPS + 1, STEPS // PARTS):
        for X, y in islice(batches, STEPS // PARTS):
            lesson.train_batch(X, y, replicas, devices, LR)
        yield step, accuracy(lesson, replicas[0], test, devices[0])


def endless(batches):
    while True:
        yield from batches


@torch.no_grad()
def accuracy(lesson, params, images, device):
    right = 0
    for X, y in zip(images.X.split(1_000), images.y.split(1_000), strict=True):
        right += (lesson.lenet(X.to(device), params).argmax(1).cpu() == y).sum().item()
    return right / images.num_examples


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="synthetic", help="a folder with images")
    options = parser.parse_args()
    real = options.data != "synthetic"
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    lesson = cells.functions("04", torch=torch, F=F, loss=loss)
    images = par.fashion_mnist(1, root=options.data)[0].num_examples
    batch = LARGE_BATCH if images >= FULL_SIZE else SMALL_BATCH
    table = recorded.Recorder(
        RECORDED / f"lenet_curves{'_real' * real}.csv",
        COLUMNS,
        key=KEY,
        told=[
            "python tools/lenet_curves.py" + " --data FOLDER" * real,
            f"LeNet of lesson 04, {STEPS} steps, learning rate {LR}, "
            + ("Fashion-MNIST" if real else "synthetic images"),
        ],
    )
    for n in (1, 2):
        if table.has(n, batch, images, SEED):
            continue
        points = curve(lesson, n, batch, options.data)
        table.add([(n, batch, images, SEED, step, f"{a:.4f}") for step, a in points])
        print(f"{n} devices, batch {batch}, {images} images: recorded", flush=True)


if __name__ == "__main__":
    main()
