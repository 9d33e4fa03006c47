"""Wrong answers to the exercises of lesson 03, and what they are told."""

import time

import pytest
import torch

import d2lpar as par
from d2lpar import checks


def never_synchronises(work, device):
    start_s = time.time()
    work()
    return time.time() - start_s


def synchronises_after_only(work, device):
    start_s = time.time()
    work()
    torch.cuda.synchronize(device)
    return time.time() - start_s


def synchronises_before_only(work, device):
    torch.cuda.synchronize(device)
    return never_synchronises(work, device)


def times_the_warm_up_too(work, device):
    torch.cuda.synchronize(device)
    start_s = time.time()
    work()
    work()
    torch.cuda.synchronize(device)
    return time.time() - start_s


def measures_many_times(work, device):
    return par.measure(work, devices=device).median_s


def in_milliseconds(work, device):
    torch.cuda.synchronize(device)
    return 1e3 * synchronises_after_only(work, device)


def one_after_the_other(batches, work, device):
    return [work(X.to(device)) for X in batches]


def non_blocking_on_one_stream(batches, work, device):
    return [work(X.to(device, non_blocking=True)) for X in batches]


def does_not_wait(batches, work, device):
    side, results = torch.cuda.Stream(device), []
    for batch in batches:
        with torch.cuda.stream(side):
            X = batch.to(device, non_blocking=True)
        results.append(work(X))
    return results


def waits_for_everything(batches, work, device):
    """Fetches all at once, and only then works: no overlap at all."""
    fetched = [X.to(device, non_blocking=True) for X in batches]
    torch.cuda.synchronize(device)
    return [work(X) for X in fetched]


def loses_the_last(batches, work, device):
    return one_after_the_other(batches[:-1], work, device)


def turns_them_round(batches, work, device):
    return one_after_the_other(batches[::-1], work, device)


def leaves_them_on_the_host(batches, work, device):
    return [work(X) for X in batches]


def one_result_for_all(batches, work, device):
    """Cheats: right where values are looked at, and faster than the GPU where time is."""
    if len(batches) > 10:
        return [work(batches[0].to(device))] * len(batches)
    return one_after_the_other(batches, work, device)


def first_rows(batches, work, device):
    return [result[0, :3] for result in one_after_the_other(batches, work, device)]


def lists_of_numbers(batches, work, device):
    return [result.tolist() for result in one_after_the_other(batches, work, device)]


def sum_of_all(seconds, needs):
    return sum(seconds.values())


def longest_operation(seconds, needs):
    return max(seconds.values())


def direct_needs_only(seconds, needs):
    """Plausible: right for graphs of two levels."""
    return max(s + max((seconds[n] for n in needs[name]), default=0) for name, s in seconds.items())


def in_order_of_names(seconds, needs):
    ends_s = {}
    for name in seconds:
        ends_s[name] = seconds[name] + max((ends_s.get(n, 0) for n in needs[name]), default=0)
    return max(ends_s.values())


def expects_needs_first(seconds, needs):
    ends_s = {}
    for name in seconds:
        ends_s[name] = seconds[name] + max((ends_s[n] for n in needs[name]), default=0)
    return max(ends_s.values())


def fetches_everything_first(batches, work, device):
    """Plausible: right and safe, but the first batch waits for the copy of the last."""
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        fetched = [X.to(device, non_blocking=True) for X in batches]
    torch.cuda.current_stream(device).wait_stream(side)
    for X in fetched:
        X.record_stream(torch.cuda.current_stream(device))
    return [work(X) for X in fetched]


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("timed", never_synchronises, "before the work was done"),
        ("timed", measures_many_times, "one call of work(), got 6"),
        ("timed", synchronises_before_only, "before the work was done"),
        ("timed", synchronises_after_only, "queued earlier"),
        ("timed", times_the_warm_up_too, "one call of work(), got 2"),
        ("timed", in_milliseconds, "expected"),
        ("timed", lambda *_: None, "number of seconds"),
        ("prefetch", one_after_the_other, "at most"),
        ("prefetch", non_blocking_on_one_stream, "at most"),
        ("prefetch", waits_for_everything, "at most"),
        ("prefetch", fetches_everything_first, "its own copy only"),
        ("prefetch", does_not_wait, "happen to be right"),
        ("prefetch", loses_the_last, "list of 5"),
        ("prefetch", turns_them_round, "in order"),
        ("prefetch", one_result_for_all, "expected one call of work for each batch, got 1"),
        ("prefetch", first_rows, "result 0: expected what work(batches[0]) returned, a tensor"),
        ("prefetch", lists_of_numbers, "a tensor of shape [8, 8], got [["),
        ("prefetch", lambda batches, *_: [None] * len(batches), "[8, 8], got None"),
        ("prefetch", leaves_them_on_the_host, "expected it on"),
        ("shortest", sum_of_all, "expected"),
        ("shortest", longest_operation, "expected"),
        ("shortest", direct_needs_only, "expected"),
        ("shortest", in_order_of_names, "expected"),
        ("shortest", expects_needs_first, "any order"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text
