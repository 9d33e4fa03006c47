"""Train LeNet on Fashion-MNIST on all ranks that were started, and go on after a crash.

python train.py                                       # one process
torchrun --standalone --nproc-per-node=2 train.py     # two ranks on this machine
srun python train.py                                  # a rank for each Slurm task
"""

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import d2lpar as par

START = {
    "epoch": 0,
    "images": 0,
}  # where in the data: images of this epoch that are done


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--batch-size",
        type=int,
        default=64,
        help="images a step and rank",
    )
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument(
        "--images", type=int, help="use only so many training images"
    )
    parser.add_argument(
        "--test-images", type=int, help="the same for the test images"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=sys.maxsize,
        help="stop after so many in all",
    )
    parser.add_argument(
        "--checkpoints",
        default="checkpoints",
        help="folder to write and resume",
    )
    parser.add_argument(
        "--every",
        type=int,
        default=100,
        help="steps between two checkpoints",
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def shares(
    n: int, position: dict, args, me
) -> Iterator[tuple[torch.Tensor, int]]:
    """Of each batch of an epoch the rows for this rank, and how many images it has in all.

    All ranks shuffle alike; the last batch, too, is divided among them, to within one image.
    """
    shuffled = torch.Generator().manual_seed(
        args.seed + position["epoch"]
    )
    order = torch.randperm(n, generator=shuffled)[
        position["images"] :
    ]
    for whole in order.split(args.batch_size * me.world_size):
        yield whole.tensor_split(me.world_size)[me.rank], len(whole)


def after(position: dict, whole: int, n: int) -> dict:
    """The position when a batch of `whole` images is done, in epochs of n images."""
    images = position["images"] + whole
    return {
        "epoch": position["epoch"] + images // n,
        "images": images % n,
    }


def train_batch(net, optimizer, X, y, whole: int, me) -> torch.Tensor:
    """One step of SGD; returns this rank's part of the whole batch's mean loss."""
    loss = cross_entropy(net(X), y, reduction="sum") / whole
    optimizer.zero_grad()
    (
        loss * me.world_size
    ).backward()  # DDP averages over ranks, and this is to be a sum
    optimizer.step()
    return loss.detach()


def settle(net: DistributedDataParallel, X: torch.Tensor) -> None:
    """Let DDP do now what it does after its first step: put the gradients in another order.

    Where three and more ranks add, another order rounds differently: without this, a run that
    was resumed would differ from one that was not, in the last digits.
    """
    net(X).sum().backward()
    net.zero_grad()


@torch.no_grad()
def accuracy(net, images, me) -> float:
    """Each rank takes its share of the test images, in pieces that fit memory."""
    X, y = (
        images.X[me.rank :: me.world_size],
        images.y[me.rank :: me.world_size],
    )
    pieces = zip(X.split(1000), y.split(1000), strict=True)
    right = sum((net(X).argmax(1) == y).sum() for X, y in pieces)
    return (in_all(right) / images.num_examples).item()


def in_all(value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)  # the sum over all ranks
    return value


def check_same_images(source: str, me) -> None:
    """One rank may be offline, and would then train on the stand-in."""
    sources = [""] * me.world_size
    dist.all_gather_object(sources, source)
    if len(set(sources)) > 1:
        raise ValueError(
            f"The ranks have different images: {sources}. Set D2LPAR_DATA alike."
        )


def train(args: argparse.Namespace, me: par.launch.RankInfo) -> None:
    def say(text: str) -> None:
        if me.rank == 0:
            print(text, flush=True)

    images, test_images = par.fashion_mnist(
        args.batch_size,
        train_size=args.images,
        test_size=args.test_images,
        device=me.device,
    )
    check_same_images(images.source, me)
    n = images.num_examples
    ranks = f"{me.world_size} ranks ({dist.get_backend()}, {me.device.type})"
    say(
        f"{ranks}, started by {me.started_by}; {n:,} images ({images.source})"
    )

    torch.manual_seed(args.seed)
    # Started as PyTorch does: lesson 04's scale of 0.01 would need 1,000 steps more.
    net = DistributedDataParallel(par.models.lenet().to(me.device))
    settle(net, images.X[:1])
    optimizer = torch.optim.SGD(
        net.parameters(), lr=args.lr, momentum=0.9
    )
    checkpoints, parts = (
        par.Checkpoints(args.checkpoints),
        {"model": net, "optimizer": optimizer},
    )
    step, position = checkpoints.resume(**parts) or (0, START)
    say(f"resumed after step {step}" if step else "started anew")

    since_s, done = time.perf_counter(), 0
    while position["epoch"] < args.epochs and step < args.steps:
        epoch = position["epoch"]
        for rows, whole in islice(
            shares(n, position, args, me), args.steps - step
        ):
            loss = train_batch(
                net,
                optimizer,
                images.X[rows],
                images.y[rows],
                whole,
                me,
            )
            step, position, done = (
                step + 1,
                after(position, whole, n),
                done + whole,
            )
            if step % args.every == 0:
                loss, now_s = in_all(loss).item(), time.perf_counter()
                rate = done / (now_s - since_s)
                say(
                    f"step {step}: loss {loss:.4f}; {rate:,.0f} images/s (measured)"
                )
                checkpoints.save(step, position, **parts)
                since_s, done = time.perf_counter(), 0
        say(
            f"epoch {epoch + 1}: test accuracy {accuracy(net.module, test_images, me):.3f}"
        )
        since_s, done = time.perf_counter(), 0
    if step % args.every:
        checkpoints.save(step, position, **parts)


if __name__ == "__main__":
    with par.launch.process_group() as me:
        train(arguments(), me)
