"""Wrong versions of what students write in "Multi-GPU training from scratch"."""

import cells
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from d2lpar import checks


@pytest.fixture(scope="module")
def lesson():
    loss = nn.CrossEntropyLoss(reduction="none")
    return cells.functions("04", torch=torch, F=F, nn=nn, par=None, loss=loss)


def pieces(tensor, devices, size):
    return [tensor[i * size : (i + 1) * size].to(d) for i, d in enumerate(devices)]


def loses_the_rest(X, y, devices):
    size = len(X) // len(devices)
    return pieces(X, devices, size), pieces(y, devices, size)


def rounds_up(X, y, devices):
    size = -(-len(X) // len(devices))
    return pieces(X, devices, size), pieces(y, devices, size)


def all_on_the_first(X, y, devices):
    return ([x.to(devices[0]) for x in t.tensor_split(len(devices))] for t in (X, y))


def everything_everywhere(X, y, devices):
    return [X.to(d) for d in devices], [y.to(d) for d in devices]


def labels_of_others(X, y, devices):
    y = y.flip(0)
    return tuple(
        [x.to(d) for x, d in zip(t.tensor_split(len(devices)), devices, strict=True)]
        for t in (X, y)
    )


def pairs(X, y, devices):
    shards = zip(X.tensor_split(len(devices)), y.tensor_split(len(devices)), devices, strict=True)
    return [(x.to(d), label.to(d)) for x, label, d in shards]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (loses_the_rest, r"\[6\] are in none"),
        (rounds_up, r"7 images on 3 devices.*\[3, 3, 1\]"),
        (all_on_the_first, "two lists"),  # a generator
        (lambda *a: tuple(all_on_the_first(*a)), "shard 1 of X: expected a tensor on vgpu:1"),
        (everything_everywhere, "in one of them, once"),
        (labels_of_others, "labels are not those of its images"),
        (pairs, "shards of X and those of y"),
    ],
)
def test_a_wrong_split_is_told_what_is_wrong(wrong, says):
    verdict = checks.split_batch(wrong)
    assert verdict.status == checks.WRONG
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(verdict.text)


def test_a_picture_of_a_wrong_split_shows_what_is_lost():
    bars = checks.split_batch(loses_the_rest).picture["bars"]
    assert bars["nowhere"]["lost"] == 1
    assert [bars[f"device {i}"]["once"] for i in range(3)] == [2, 2, 2]
    doubled = checks.split_batch(everything_everywhere).picture["bars"]
    assert doubled["device 1"] == {"once": 0, "again": 7, "lost": 0}


@torch.no_grad()
def rebinds(data):
    for i in range(1, len(data)):
        data[0] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i] = data[0].to(data[i].device)


@torch.no_grad()
def sends_too_early(data):
    for tensor in data[1:]:
        data[0] += tensor.to(data[0].device)
        tensor[:] = data[0].to(tensor.device)


@torch.no_grad()
def averages(data):
    total = sum(tensor.to(data[0].device) for tensor in data) / len(data)
    for tensor in data:
        tensor[:] = total.to(tensor.device)


@torch.no_grad()
def adds_sums(data):
    for one in data:
        for other in data:
            if other is not one:
                one += other.to(one.device)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (rebinds, "what it held before"),
        (sends_too_early, "sum of the first ones"),
        (averages, "the mean"),
        (adds_sums, "added once"),
    ],
)
def test_a_wrong_all_reduce_is_told_what_is_wrong(wrong, says):
    verdict = checks.all_reduce(wrong)
    assert verdict.status == checks.WRONG
    assert says in verdict.text
    assert verdict.picture["spans"], "it shows the copies that were made"


def test_wrong_steps_are_told_by_what_they_did(lesson):
    def by_shard(X, y, replicas, devices, lr):
        lesson.train_batch(X, y, replicas, devices, lr * len(devices))

    def without_sums(X, y, replicas, devices, lr):
        lesson.train_batch(X, y, replicas, devices, lr, add=lambda gradients: None)

    def keeps_gradients(X, y, replicas, devices, lr):
        def sgd(params, lr, batch_size):
            with torch.no_grad():
                for w in params:
                    w -= lr * w.grad / batch_size

        lesson.train_batch(X, y, replicas, devices, lr, sgd=sgd)

    found = {f: checks.train_batch(f) for f in (by_shard, without_sums, keeps_gradients)}
    assert {verdict.status for verdict in found.values()} == {checks.WRONG}
    assert "on 2 device" in found[by_shard].text
    assert "on 2 device" in found[without_sums].text
    assert "on 1 device" in found[keeps_gradients].text  # wrong with any number of them
