"""Checks accept the right answer, and say of wrong ones what is wrong."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from test_cores import cores

import d2lpar as par
from d2lpar import checks
from d2lpar.machines import catalogue

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "solutions"
EXERCISES = {
    "hardware": ("linear_intensity", "batch_at_ridge"),
    "gpus_and_links": ("mean_loss", "fewest_workers"),
    "auto_parallelism": ("timed", "prefetch", "shortest"),
    "multi_gpu_from_scratch": ("shares", "all_reduce_buckets", "accumulate"),
    "multi_gpu_concise": ("shards_seen", "bucket_plan", "whole_batch"),
    "distributed_sgd": ("busiest_bytes", "ring_plan", "stale_sgd", "best_batch", "mended"),
    "pipelining": ("balance", "one_f_one_b", "fewest_micro_batches"),
    "channel_parallelism": ("by_input_channels",),
    "memory_and_mixes": ("zero_bytes", "groups_of"),
    "museum": (
        *("validated", "summed_by_class", "trained_on_all", "trained_heads", "restored"),
        *("validation_loss", "resumed", "backward_over_tokens", "contrasted", "orders_seen"),
        *("read_back", "handed_on"),
    ),
}
ALL = [(lesson, name) for lesson, names in EXERCISES.items() for name in names]


def solution(lesson, name):
    spec = importlib.util.spec_from_file_location(lesson, SOLUTIONS / f"{lesson}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.fixture(autouse=True)
def virtual():
    return par.devices(2, kind="virtual", verbose=False)


def test_every_solution_belongs_to_a_known_exercise():
    lessons = {path.stem for path in SOLUTIONS.glob("*.py")} - {"challenges"}
    assert lessons == set(EXERCISES)


@pytest.mark.parametrize(("lesson", "name"), ALL)
def test_solutions_are_right_and_checks_leave_clock_and_memory_alone(lesson, name, virtual):
    vgpu = torch.get_device_module(virtual[0])
    before = par.Timer(virtual).stop(), vgpu.memory_allocated(0)
    verdict = getattr(checks, name)(solution(lesson, name))
    assert verdict.status == checks.RIGHT, verdict
    assert verdict
    assert (par.Timer(virtual).stop(), vgpu.memory_allocated(0)) == before


@pytest.mark.parametrize(("lesson", "name"), ALL)
def test_a_stub_is_not_wrong_but_not_attempted(lesson, name):
    def stub(*_):
        raise NotImplementedError

    verdict = getattr(checks, name)(stub)
    assert verdict.status == checks.NOT_YET
    assert not verdict


def test_a_decorated_stub_is_not_attempted_either():
    @torch.no_grad()
    def stub(data):
        raise NotImplementedError

    assert checks.all_reduce(stub).status == checks.NOT_YET


@pytest.mark.parametrize(("lesson", "name"), ALL)
def test_an_error_in_the_answer_is_told(lesson, name):
    def broken(*_):
        raise KeyError("typo")

    verdict = getattr(checks, name)(broken)
    assert verdict.status == checks.WRONG
    assert "KeyError" in verdict.text
    assert "typo" in verdict.text


def shares(batch_size, speeds):
    unused = batch_size
    return unused / len(speeds[7:])


def test_an_error_is_told_with_the_students_own_line():
    text = par.check(shares).text
    assert "ZeroDivisionError" in text
    line = shares.__code__.co_firstlineno + 2
    assert f"in line {line} (`return unused / len(speeds[7:])`)" in text


def test_a_function_without_return_is_told_so():
    def shares(batch_size, speeds):
        [batch_size] * len(speeds)

    said = "got None. Your function returned nothing here: is there a `return …` on every path?"
    assert par.check(shares).text.endswith(said)


@pytest.mark.parametrize("value", [3, object(), "ab", [1.5, 1], math.nan])
def test_a_value_of_another_kind_is_wrong(value):
    def shares(batch_size, speeds):
        return value

    verdict = par.check(shares)
    assert verdict.status == checks.WRONG
    assert "shares(256, [1, 1]): expected 2 whole numbers, got" in verdict.text


@pytest.mark.parametrize("value", [None, [], [1, None], [128, 128]])
def test_a_check_that_fails_itself_blames_no_answer(monkeypatch, value):
    """Not even one that is wrong besides: nobody knows."""

    def shares(batch_size, speeds):
        return value

    monkeypatch.setattr("d2lpar.checks.multi_gpu_from_scratch.is_whole", lambda n: n / 0)
    monkeypatch.setattr("d2lpar.checks.multi_gpu_from_scratch.len", lambda _: 1 / 0, raising=False)
    verdict = par.check(shares)
    assert not verdict
    assert verdict.status == "not graded"
    assert "the check of shares has failed itself, with ZeroDivisionError" in verdict.text
    assert "in test_checks.py:" in verdict.text
    assert "your answer may be right" in repr(verdict)


GARBAGE = (3, "x", [], [None], {}, (1, 2), torch.ones(2), object(), lambda *_: None, {1: [1]})


@pytest.mark.parametrize(("lesson", "name"), ALL)
def test_whatever_an_answer_returns_is_judged(lesson, name):
    """A check that failed at what it should have looked at would leave it to nobody."""
    for value in GARBAGE:
        verdict = getattr(checks, name)(lambda *_, value=value: value)
        assert verdict.status == checks.WRONG, (value, verdict)


def test_check_finds_the_exercise_by_the_functions_name():
    given = {"flat"}  # the first rung of lesson 05, which shows what a check draws
    assert set(checks.exercises()) == given | {name for _, name in (*ALL, *cores())}
    assert par.check(solution("multi_gpu_from_scratch", "shares"))
    with pytest.raises(ValueError, match=r"named 'share'; did you mean 'shares'\?"):
        par.check(type(shares)(shares.__code__, {}, "share"))
    with pytest.raises(TypeError, match=r"the function itself, not 3"):
        par.check(3)


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
    assert "the whole batch" in verdict.text
    verdict = checks.same_step(before, [good, none], reference)
    assert "0 times" in verdict.text
    assert "every replica" in verdict.text


def test_faster_than_the_hardware_is_impossible():
    assert checks.possible_rate(1e12, 1.0, catalogue.V100)
    assert "Synchronise" in checks.possible_rate(1e15, 1.0, catalogue.V100).text
