"""Wrong versions of what students write in "Multi-GPU training from scratch"."""

import re

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
        (everything_everywhere, "in more than one"),
        (
            lambda X, y, d: (pieces(X, d, 3), [y.to(each) for each in d]),
            r"labels\b.* more than one",
        ),
        (labels_of_others, "labels are not those of its images"),
        (pairs, "shards of X and those of y"),
    ],
)
def test_a_wrong_split_is_told_what_is_wrong(wrong, says):
    verdict = checks.split_batch(wrong)
    assert verdict.status == checks.WRONG
    assert re.search(says, verdict.text), verdict.text


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


def sgd_that(update):
    @torch.no_grad()
    def sgd(params, lr, batch_size):
        for w in params:
            update(w, lr / batch_size)

    return sgd


def step_with(lesson, case):
    """A wrong training step, made of right parts."""

    def by_shard(X, y, replicas, devices, lr, add=lesson.all_reduce):
        lesson.train_batch(X, y, replicas, devices, lr * len(devices), add=add)

    def without_sums(X, y, replicas, devices, lr, add=None):
        lesson.train_batch(X, y, replicas, devices, lr, add=lambda gradients: None)

    def keeps_gradients(X, y, replicas, devices, lr, add=lesson.all_reduce):
        sgd = sgd_that(lambda w, rate: w.sub_(rate * w.grad))
        lesson.train_batch(X, y, replicas, devices, lr, add=add, sgd=sgd)

    def averages_the_loss(X, y, replicas, devices, lr, add=lesson.all_reduce):
        lesson.train_batch(X, y, replicas, devices, lr * len(devices) / len(X), add=add)

    def updates_the_first(X, y, replicas, devices, lr, add=lesson.all_reduce):
        others = {id(w) for replica in replicas[1:] for w in replica}
        sgd = sgd_that(lambda w, rate: id(w) in others or w.sub_(rate * w.grad).grad.zero_())
        lesson.train_batch(X, y, replicas, devices, lr, add=add, sgd=sgd)

    def never_splits(X, y, replicas, devices, lr, add=lesson.all_reduce):
        for replica, device in zip(replicas, devices, strict=True):
            outputs = lesson.lenet(X.to(device), replica)
            lesson.loss(outputs, y.to(device)).sum().backward()
        for tensors in zip(*replicas, strict=True):
            add([w.grad for w in tensors])
        for replica in replicas:
            lesson.sgd(replica, lr, len(X) * len(devices))

    def ignores_add(X, y, replicas, devices, lr, add=None):
        lesson.train_batch(X, y, replicas, devices, lr)

    return locals()[case]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("by_shard", "2 devices, step 1, replica 0: its step is 2 times as long"),
        ("without_sums", "2 devices, step 1, replica 0.*goes elsewhere"),
        ("keeps_gradients", "1 device, step 2.*set to zero"),
        ("averages_the_loss", "1 device, step 1.*not averaged"),
        ("updates_the_first", "2 devices, step 1, replica 1: it did not move"),
        ("never_splits", "times the work of one"),
        ("ignores_add", r"call add\("),
    ],
)
def test_a_wrong_step_is_told_what_is_wrong(case, says, lesson):
    verdict = checks.train_batch(step_with(lesson, case))
    assert verdict.status == checks.WRONG
    assert re.search(says, verdict.text), verdict.text
    assert verdict.picture["spans"]
