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


def parts(kernels, copies, load_s, rates, *, starts=None, copied=None, calls=None):
    flops, nbytes = (sum(column) for column in zip(*kernels, strict=True))
    starts = len(kernels) if starts is None else starts
    copied = len(copies) if copied is None else copied
    calls = len(kernels) + len(copies) if calls is None else calls
    return {
        "computing": flops / rates.flops_per_s,
        "memory": starts * rates.kernel_alpha_s + nbytes / rates.bytes_per_s,
        "host": calls * rates.dispatch_s,
        "links": copied * rates.copy_alpha_s + sum(copies) / rates.link_bytes_per_s,
        "loader": load_s,
    }


def dispatches_no_copies(kernels, copies, load_s, rates):
    """Plausible: only kernels are launched."""
    return parts(kernels, copies, load_s, rates, calls=len(kernels))


def starts_no_kernels(kernels, copies, load_s, rates):
    return parts(kernels, copies, load_s, rates, starts=0)


def starts_one_kernel(kernels, copies, load_s, rates):
    return parts(kernels, copies, load_s, rates, starts=1)


def one_latency(kernels, copies, load_s, rates):
    return parts(kernels, copies, load_s, rates, copied=bool(copies))


def no_latency(kernels, copies, load_s, rates):
    return parts(kernels, copies, load_s, rates, copied=0)


def swaps_the_pair(kernels, copies, load_s, rates):
    """Plausible: the table names bytes more often than FLOP."""
    return parts([(nbytes, flops) for flops, nbytes in kernels], copies, load_s, rates)


def in_milliseconds(kernels, copies, load_s, rates):
    return {name: 1e3 * s for name, s in parts(kernels, copies, load_s, rates).items()}


def a_list(kernels, copies, load_s, rates):
    return [*parts(kernels, copies, load_s, rates).values()]


def without_the_loader(kernels, copies, load_s, rates):
    return {n: s for n, s in parts(kernels, copies, load_s, rates).items() if n != "loader"}


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
        ("could_wait_for", dispatches_no_copies, "the host dispatches each copy, too"),
        ("could_wait_for", starts_no_kernels, "to start"),
        ("could_wait_for", starts_one_kernel, "not only the first"),
        ("could_wait_for", one_latency, "each of 2 copies pays the latency"),
        ("could_wait_for", no_latency, "its latency"),
        ("could_wait_for", swaps_the_pair, "the first of each pair is the FLOP"),
        ("could_wait_for", in_milliseconds, "expected 400 µs, got 400000 µs"),
        ("could_wait_for", a_list, "expected a dict"),
        ("could_wait_for", without_the_loader, "computing, memory, host, links, loader"),
        ("fewest_workers", rounds_down, "every 0.292 s"),
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


def test_the_table_draws_bars_of_wrong_answers_too():
    assert checks.could_wait_for(parts).status == checks.RIGHT
    for answer in (parts, starts_one_kernel, without_the_loader):
        picture = checks.could_wait_for(answer).picture
        assert picture["kind"] == "bars"
        assert picture["bars"]["one kernel"]["computing"] == pytest.approx(0.4)
    assert checks.could_wait_for(a_list).picture == {}
