"""The stand-in: the same pictures everywhere, and hard enough to learn something from."""

import zlib

import pytest
import torch
import warm_process
from torch import nn
from torch.nn import functional as F

from d2lpar.lesson import synthetic_fashion as garments
from d2lpar.lesson.synthetic_fashion import BLOCK, CLASSES, draw

# Of two blocks. It changes with the drawing, and then the notebooks must be recorded anew.
CHECKSUM = 2374206090


def checksum(n: int) -> int:
    images, labels = draw(n)
    return zlib.crc32(labels.numpy().tobytes(), zlib.crc32(images.numpy().tobytes()))


def test_the_pictures_are_the_same_on_every_machine():
    assert checksum(2 * BLOCK) == CHECKSUM


@pytest.mark.parametrize("threads", [1, 3])
def test_another_process_draws_the_same(threads):
    code = f"""
import torch
torch.set_num_threads({threads})
from test_garments import checksum
print(checksum({BLOCK + 1}))
"""
    run = warm_process.run(code)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == checksum(BLOCK + 1)


@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_small_draw_is_the_beginning_of_a_large_one(n):
    images, labels = draw(n)
    more_images, more_labels = draw(2 * BLOCK)
    assert images.shape == (n, 1, 28, 28)
    assert labels.shape == (n,)
    assert torch.equal(images, more_images[:n])
    assert torch.equal(labels, more_labels[:n])


def test_splits_seeds_and_blocks_differ():
    base = draw(2 * BLOCK)[0]
    others = base[BLOCK:], draw(BLOCK, split="test")[0], draw(BLOCK, seed=1)[0]
    firsts = [base[:BLOCK], *others]
    distinct = torch.cat(firsts).flatten(1).unique(dim=0)
    assert len(distinct) == 4 * BLOCK


def test_an_unknown_split_is_refused_by_name():
    with pytest.raises(ValueError, match="'validation'"):
        draw(3, split="validation")


def test_bytes_that_fill_the_range_and_classes_that_are_balanced():
    images, labels = draw(10 * BLOCK)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert (images.amin(), images.amax()) == (0, 255)
    share = labels.bincount(minlength=len(CLASSES)) / len(labels)
    assert len(share) == len(CLASSES)
    assert ((share > 0.08) & (share < 0.12)).all()
    visible = (images > 30).float().mean(dim=(1, 2, 3))  # no picture is empty or full
    assert visible.amin() > 0.01
    assert visible.amax() < 0.95
    assert 0.4 < (images == 0).float().mean() < 0.7  # the real ones: 0.50


def test_every_garment_uses_no_more_dice_than_it_has():
    _, labels = draw(BLOCK)  # running out raises StopIteration
    assert set(labels.tolist()) == set(range(len(CLASSES)))
    assert len(garments.STYLES) == len(CLASSES)


def split_for_learning(n_train: int, n_test: int):
    X, y = draw(n_train)
    X_test, y_test = draw(n_test, split="test")
    return X / 255, y, X_test / 255, y_test


def test_a_linear_model_learns_much_but_not_all():
    X, y, X_test, y_test = split_for_learning(6000, 2000)
    targets = F.one_hot(y).float() - 0.1
    A = X.flatten(1) - X.mean()
    weights = torch.linalg.solve(A.T @ A + 100 * torch.eye(784), A.T @ targets)
    accuracy = ((X_test.flatten(1) - X.mean()) @ weights).argmax(1).eq(y_test).float().mean()
    assert 0.62 < accuracy < 0.8


@pytest.mark.slow
def test_a_convolutional_network_is_clearly_better_than_a_linear_model():
    X, y, X_test, y_test = split_for_learning(10_000, 2000)

    def trained(net: nn.Module, epochs: int, optimiser: torch.optim.Optimizer) -> float:
        for _ in range(epochs):
            for rows in torch.randperm(len(X)).split(64):
                optimiser.zero_grad()
                F.cross_entropy(net(X[rows]), y[rows]).backward()
                optimiser.step()
        with torch.no_grad():
            return net(X_test).argmax(1).eq(y_test).float().mean().item()

    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    convolutional = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    low = trained(linear, 10, torch.optim.SGD(linear.parameters(), lr=0.05))
    high = trained(convolutional, 6, torch.optim.Adam(convolutional.parameters(), lr=2e-3))
    assert 0.7 < low < 0.8
    assert 0.84 < high < 0.95
    assert high > low + 0.08
