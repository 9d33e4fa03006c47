"""Wrong answers to the exercises of lesson 02, and what they are told."""

import math

import pytest
import torch

from d2lpar import checks


def knows_the_losses(step, batches):
    """Cheats: the check's losses are the squares of what it hands out as X."""
    for X, y in batches:
        step(X, y)
    return sum(X * X for X, _ in batches) / len(batches)


def reads_every_loss(step, batches):
    return sum(step(X, y).item() for X, y in batches) / len(batches)


def returns_the_sum(step, batches):
    return sum(step(X, y).detach() for X, y in batches).item()


def returns_a_tensor(step, batches):
    return sum(step(X, y).detach() for X, y in batches) / len(batches)


def stacks_in_a_list(step, batches):
    return torch.tensor([step(X, y) for X, y in batches]).mean().item()


def only_the_last(step, batches):
    return [step(X, y) for X, y in batches][-1].item()


def calls_twice(step, batches):
    return torch.stack([step(X, y) for _ in range(2) for X, y in batches]).mean().item()


def rounds_down(read_s, step_s):
    """Plausible: leaves the GPU waiting for the rest of a worker."""
    return max(1, int(read_s / step_s))


def always_one_more(read_s, step_s):
    return int(read_s / step_s) + 1


def none_for_little_work(read_s, step_s):
    return round(read_s / step_s)


def a_share_of_a_worker(read_s, step_s):
    return read_s / step_s


def counts_in_floats(read_s, step_s):
    return float(max(1, math.ceil(read_s / step_s)))


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("mean_loss", reads_every_loss, "waited 3 times"),
        ("mean_loss", returns_the_sum, "expected"),
        ("mean_loss", returns_a_tensor, ".item()"),
        ("mean_loss", stacks_in_a_list, "waited 3 times"),
        ("mean_loss", only_the_last, "expected"),
        ("mean_loss", knows_the_losses, "was never read from the GPU"),
        ("mean_loss", calls_twice, "once for each"),
        ("fewest_workers", rounds_down, "every 0.117 s"),
        ("fewest_workers", always_one_more, "fewer are quick enough"),
        ("fewest_workers", none_for_little_work, "expected 1, got 0"),
        ("fewest_workers", a_share_of_a_worker, "expected 4, got 3.5"),
        ("fewest_workers", counts_in_floats, "workers are counted"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text
