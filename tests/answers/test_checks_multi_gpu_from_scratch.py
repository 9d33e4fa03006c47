"""Wrong answers to the exercises of lesson 04, and what they are told."""

import pytest
import torch

import d2lpar as par
from d2lpar import checks


def halves(batch_size, speeds):
    return [batch_size // len(speeds)] * len(speeds)


def loses_the_rest(batch_size, speeds):
    return [int(0.99 * batch_size * s / sum(speeds)) for s in speeds]


def the_slow_get_more(batch_size, speeds):
    inverse = [1 / s for s in speeds]
    counts = [int(batch_size * i / sum(inverse)) for i in inverse]
    counts[0] += batch_size - sum(counts)
    return counts


def fractions(batch_size, speeds):
    return [batch_size * s / sum(speeds) for s in speeds]


def a_tensor_at_a_time(grads):
    for tensors in zip(*grads, strict=True):
        par.collectives.all_reduce_naive(tensors)


def rebinds(grads):
    flats = [torch.cat([g.flatten() for g in rank]) for rank in grads]
    total = sum(flat.to(flats[0].device) for flat in flats)
    for rank in grads:
        pieces = total.to(rank[0].device).split([g.numel() for g in rank])
        rank[:] = [p.view_as(g) for g, p in zip(rank, pieces, strict=True)]


def averages(grads):
    a_tensor_at_a_time(grads)
    for rank in grads:
        for g in rank:
            g /= len(grads)


def only_the_first(grads):
    for tensors in zip(*grads, strict=True):
        for tensor in tensors[1:]:
            tensors[0].add_(tensor.to(tensors[0].device))


def whole(loss, X, y, params, pieces):
    loss(X, y, params).backward()


def sums_the_losses_first(loss, X, y, params, pieces):
    parts = zip(X.tensor_split(pieces), y.tensor_split(pieces), strict=True)
    sum(loss(a, b, params) for a, b in parts).backward()


def averages_the_pieces(loss, X, y, params, pieces):
    for a, b in zip(X.tensor_split(pieces), y.tensor_split(pieces), strict=True):
        (loss(a, b, params) / pieces).backward()


def forgets_the_rest(loss, X, y, params, pieces):
    size = len(X) // pieces
    for i in range(pieces):
        part = slice(i * size, (i + 1) * size)
        loss(X[part], y[part], params).backward()


def zeroes_in_between(loss, X, y, params, pieces):
    for a, b in zip(X.tensor_split(pieces), y.tensor_split(pieces), strict=True):
        for p in params:
            p.grad = None
        loss(a, b, params).backward()


def on_the_host(loss, X, y, params, pieces):
    """Cheats: the host has memory enough."""
    loss(X.cpu(), y.cpu(), [p.cpu() for p in params]).backward()


def forgets_the_peak(loss, X, y, params, pieces):
    """Cheats: the whole batch, after which the peak is said to begin."""
    whole(loss, X, y, params, pieces)
    torch.get_device_module(X.device).reset_peak_memory_stats(X.device)


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("shares", halves, "slowest share"),
        ("shares", loses_the_rest, "every image"),
        ("shares", the_slow_get_more, "slowest share"),
        ("shares", fractions, "whole numbers"),
        ("all_reduce_buckets", a_tensor_at_a_time, "copies"),
        ("all_reduce_buckets", rebinds, "written into"),
        ("all_reduce_buckets", averages, "expected the sum"),
        ("all_reduce_buckets", averages, "That is the average; do not divide by 2"),
        ("all_reduce_buckets", only_the_first, "device 1"),
        ("accumulate", whole, "half"),
        ("accumulate", sums_the_losses_first, "half"),
        ("accumulate", averages_the_pieces, "differs"),
        ("accumulate", forgets_the_rest, "differs"),
        ("accumulate", zeroes_in_between, "differs"),
        ("accumulate", lambda *_: None, "None"),
        ("accumulate", on_the_host, "computed 0 MFLOP"),
        ("accumulate", forgets_the_peak, "expected half of it at most"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text
