"""Checks accept the right answer, and say of wrong ones what is wrong."""

import importlib.util
from pathlib import Path

import pytest
import torch

import d2lpar as par
from d2lpar import checks, machines

SOLUTIONS = Path(__file__).parents[1] / "notebooks" / "solutions" / "lesson03.py"


@pytest.fixture(scope="module")
def solutions():
    spec = importlib.util.spec_from_file_location("lesson03", SOLUTIONS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def virtual():
    return par.devices(2, kind="virtual", verbose=False)


@pytest.mark.parametrize("name", ["shares", "all_reduce_buckets", "accumulate"])
def test_solutions_are_right(solutions, name):
    verdict = getattr(checks, name)(getattr(solutions, name))
    assert verdict.status == checks.RIGHT, verdict
    assert verdict


@pytest.mark.parametrize("name", ["shares", "all_reduce_buckets", "accumulate"])
def test_a_stub_is_not_wrong_but_not_attempted(name):
    def stub(*_):
        raise NotImplementedError

    verdict = getattr(checks, name)(stub)
    assert verdict.status == checks.NOT_YET
    assert not verdict


@pytest.mark.parametrize("name", ["shares", "all_reduce_buckets", "accumulate"])
def test_an_error_in_the_answer_is_told(name):
    def broken(*_):
        raise KeyError("typo")

    verdict = getattr(checks, name)(broken)
    assert verdict.status == checks.WRONG
    assert "KeyError" in verdict.text
    assert "typo" in verdict.text


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
        ("all_reduce_buckets", only_the_first, "device 1"),
        ("accumulate", whole, "half"),
        ("accumulate", sums_the_losses_first, "half"),
        ("accumulate", averages_the_pieces, "differs"),
        ("accumulate", forgets_the_rest, "differs"),
        ("accumulate", zeroes_in_between, "differs"),
        ("accumulate", lambda *_: None, "None"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_a_check_leaves_clock_and_memory_alone(solutions, virtual):
    vgpu = torch.get_device_module(virtual[0])
    before = par.Timer(virtual).stop(), vgpu.memory_allocated(0)
    checks.all_reduce_buckets(solutions.all_reduce_buckets)
    checks.accumulate(solutions.accumulate)
    assert (par.Timer(virtual).stop(), vgpu.memory_allocated(0)) == before


def test_aliased_replicas_are_seen_and_left_as_they_were():
    params = [torch.arange(3.0)]
    aliased = [[p.to("cpu") for p in params] for _ in range(2)]
    assert "one tensor in memory" in checks.separate_memory(aliased).text
    assert torch.equal(params[0], torch.arange(3.0))
    copied = [[p.to("cpu", copy=True) for p in params] for _ in range(2)]
    assert checks.separate_memory(copied)
    third = [*copied, copied[1]]
    assert "replica 1 and replica 2" in checks.separate_memory(third).text


def test_same_everywhere(virtual):
    equal = [torch.ones(2).to(d) for d in virtual]
    assert checks.same_everywhere(equal)
    equal[1][0] = 3
    verdict = checks.same_everywhere(equal)
    assert verdict.status == checks.WRONG
    assert "vgpu:1" in verdict.text
    assert "2" in verdict.text


def test_same_step_looks_at_every_replica_and_tells_how_long_the_step_was():
    before, reference = [torch.zeros(3)], [torch.full((3,), -0.5)]
    good, far, none = ([torch.full((3,), value)] for value in (-0.5, -1.0, 0.0))
    assert checks.same_step(before, [good, good], reference)
    verdict = checks.same_step(before, [good, far], reference)
    assert "replica 1" in verdict.text
    assert "2 times" in verdict.text
    assert "0 times" in checks.same_step(before, [good, none], reference).text


def test_faster_than_the_hardware_is_impossible():
    assert checks.possible_rate(1e12, 1.0, machines.V100)
    assert "Synchronise" in checks.possible_rate(1e15, 1.0, machines.V100).text
