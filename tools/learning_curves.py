"""Records how well a reduced ResNet-18 learns with different batches, rates and devices.

    python tools/learning_curves.py compared    # the textbook's settings, ten epochs
    python tools/learning_curves.py real --data FOLDER    # the same, on real images
    python tools/learning_curves.py grid    # many settings, five short epochs

write learning_curves_compared.csv and so on in notebooks/recorded: a row per epoch of a run. Runs
that a table holds already are kept. `--full` trains the whole ResNet-18 on whole images: that is
for GPUs, and has not been tried. On a slow core a run of ten epochs takes about four minutes. The
first four runs of the stored `compared` table were made by an earlier form of this script, with the
same settings.
"""

import argparse
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import d2lpar as par
from d2lpar import models, recorded

RECORDED = Path(__file__).resolve().parent.parent / "notebooks" / "recorded"
KEY = ("devices", "batch", "lr", "warmup_epochs", "seed")
COLUMNS = (*KEY, "epoch", "loss", "accuracy")

# Devices, batch, learning rate, epochs of warm-up; the first two are the textbook's.
COMPARED = [(1, 256, 0.1, 0), (2, 512, 0.2, 0), (2, 256, 0.1, 0), (2, 512, 0.2, 1)]
# With few images batches are smaller, so that an epoch has steps enough.
REAL = [(devices, batch // 8, lr, warmup) for devices, batch, lr, warmup in COMPARED]
GRID = [(1, batch, lr, 0) for batch in (64, 256, 1024) for lr in (0.0125, 0.05, 0.2, 0.8)]


@dataclass(frozen=True)
class Plan:
    """What a table holds: settings, seeds, epochs, and images of an epoch (None: all)."""

    settings: list
    seeds: int
    epochs: int
    images: int | None = None


PLANS = {
    "compared": Plan(COMPARED, seeds=3, epochs=10),
    "real": Plan(REAL, seeds=2, epochs=30),
    "grid": Plan(GRID, seeds=1, epochs=5, images=12_000),
}


@dataclass(frozen=True)
class Run:
    """One training; the learning rate grows linearly over the first `warmup_epochs`."""

    devices: int
    batch: int
    lr: float
    warmup_epochs: int
    seed: int


@dataclass(frozen=True)
class Size:
    """Channels of the network's first stage, and pixels of an image's side."""

    width: int
    pixels: int

    def scaled(self, X):
        return X if self.pixels == X.shape[-1] else F.adaptive_avg_pool2d(X, self.pixels)


def curve(run, plan, size, data):
    """Yields mean loss and test accuracy of each epoch."""
    torch.manual_seed(run.seed)
    devices = par.devices(run.devices, verbose=False)
    net = models.resnet18(width=size.width).apply(as_in_the_textbook).to(devices[0])
    replicated = nn.DataParallel(net, list(range(len(devices)))) if len(devices) > 1 else net
    train, test = par.fashion_mnist(run.batch, root=data, seed=run.seed, train_size=plan.images)
    optimizer = torch.optim.SGD(net.parameters(), run.lr)
    steps, warmup = 0, run.warmup_epochs * len(train)
    for _ in range(plan.epochs):
        losses = []
        for X, y in train:
            steps += 1
            optimizer.param_groups[0]["lr"] = run.lr * min(1, steps / max(1, warmup))
            loss = F.cross_entropy(replicated(size.scaled(X).to(devices[0])), y.to(devices[0]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        yield sum(losses) / len(losses), accuracy(net, size, test, devices[0])


def as_in_the_textbook(layer):
    if isinstance(layer, (nn.Linear, nn.Conv2d)):
        nn.init.normal_(layer.weight, std=0.01)


@torch.no_grad()
def accuracy(net, size, test, device):
    net.eval()
    right = [(net(size.scaled(X).to(device)).argmax(1).cpu() == y).sum().item() for X, y in test]
    net.train()
    return sum(right) / test.num_examples


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=PLANS)
    parser.add_argument("--data", default="synthetic", help="a folder with images")
    parser.add_argument("--full", action="store_true", help="whole network, whole images")
    options = parser.parse_args()
    if (options.what == "real") != (options.data != "synthetic"):
        parser.error("`real` takes --data FOLDER, the others draw synthetic images")
    plan, size = PLANS[options.what], Size(64, 28) if options.full else Size(8, 14)
    command = f"python tools/learning_curves.py {options.what}"
    table = recorded.Recorder(
        RECORDED / f"learning_curves_{options.what}.csv",
        COLUMNS,
        key=KEY,
        told=[
            command + (" --data FOLDER" if options.what == "real" else ""),
            f"ResNet-18 with {size.width} channels first, {size.pixels} x {size.pixels} pixels",
        ],
    )
    for run in (Run(*setting, seed) for seed in range(plan.seeds) for setting in plan.settings):
        if not table.has(*astuple(run)):
            values = enumerate(curve(run, plan, size, options.data), start=1)
            rows = [(*astuple(run), e, f"{loss:.4f}", f"{a:.4f}") for e, (loss, a) in values]
            table.add(rows)
            print(run, f"accuracy {rows[-1][-1]}", flush=True)


if __name__ == "__main__":
    main()
