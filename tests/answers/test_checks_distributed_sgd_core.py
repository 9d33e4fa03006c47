"""Wrong versions of lesson 06's core: what they are told, and what is drawn of them."""

import json

import pytest
import torch
import torch.distributed as dist

from d2lpar import checks
from d2lpar.checks import distributed_sgd_core as core
from d2lpar.parallelism import scaling

GARBAGE = (3, "x", [], [None], {}, (1, 2), torch.ones(2), object(), lambda *_: None, None)


def exchange(out, received):
    """A send to the right and a receive from the left, at once."""
    rank, n = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, out, (rank + 1) % n)
    recv = dist.P2POp(dist.irecv, received, (rank - 1) % n)
    for work in dist.batch_isend_irecv([send, recv]):
        work.wait()


def ring(adds=lambda step, n: step < n - 1, steps=lambda n: 2 * (n - 1), shift=0, way=exchange):
    def all_reduce_ring(X):
        rank, n = dist.get_rank(), dist.get_world_size()
        pieces = X.view(-1).tensor_split(n)
        for step in range(steps(n)):
            out, into = (pieces[(rank - step - i) % n] for i in (0, 1))
            received = torch.empty_like(into)
            way(out, received)
            if shift:
                into = pieces[(rank - step - 1 + shift) % n][: received.numel()]
            if adds(step, n):
                into += received
            else:
                into.copy_(received)

    return all_reduce_ring


def all_of_it_round_and_round(X):
    """Plausible, and right: but each step sends everything."""
    own, received = X.clone(), torch.empty_like(X)
    for _ in range(dist.get_world_size() - 1):
        exchange(own, received)
        own = received.clone()
        X += received


def with_the_library(X):
    dist.all_reduce(X)


def into_a_new_tensor(X):
    """Plausible: the sum is returned."""
    Y = X.clone()
    ring()(Y)
    return Y


def mean(X):
    ring()(X)
    X /= dist.get_world_size()


def send_then_receive(out, received):
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.send(out, (rank + 1) % n)
    dist.recv(received, (rank - 1) % n)


def receive_then_send(out, received):
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.recv(received, (rank - 1) % n)
    dist.send(out, (rank + 1) % n)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ring(adds=lambda step, n: True), "rank 0's number is in it 2 times; in the second n - 1"),
        (ring(adds=lambda step, n: False), "rank 1's number is missing"),
        (ring(steps=lambda n: n - 1), "is missing"),
        (all_of_it_round_and_round, "rank 0 has sent 8,008 bytes; expected 5,344 at most"),
        (with_the_library, "all_reduce did the work"),
        (into_a_new_tensor, "X is as it was"),
        (mean, "expected 111, got 37: that is the mean"),
        (ring(way=send_then_receive), "all wait to send"),
        (ring(way=receive_then_send), "all wait to receive"),
        (lambda X: X.fill_(0.5), "no sum of what the ranks have"),
    ],
)
def test_a_ring_that_is_wrong_is_told_whose_numbers_are_where(answer, reason):
    verdict = checks.all_reduce_ring(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_pieces_in_other_places_are_found_by_different_numbers():
    def swaps(X):
        ring()(X)
        flat = X.view(-1)
        flat[0], flat[-1] = flat[-1].clone(), flat[0].clone()

    verdict = checks.all_reduce_ring(swaps)
    assert "is added to another piece than its own" in verdict.text


def sends(verdict):
    spans = json.loads(json.dumps(verdict.picture))["spans"]
    return [span for span in spans if span[2] == "copy"]


def test_the_sends_of_a_ring_are_drawn_and_counted():
    verdict = checks.all_reduce_ring(ring())
    assert verdict
    assert len(sends(verdict)) == 4 * 6  # 4 ranks, 2 (n - 1) steps
    assert "none has sent more than 37.5 MB" in verdict.text  # 1.5 times 25 MB


def test_of_a_ring_that_hangs_what_ran_is_drawn():
    def two_steps(X):
        ring(steps=lambda n: 2)(X)
        dist.recv(torch.empty_like(X), (dist.get_rank() - 1) % dist.get_world_size())

    verdict = checks.all_reduce_ring(two_steps)
    assert "no rank can go on" in verdict.text
    assert len(sends(verdict)) == 3 * 2


def test_a_stub_of_the_ring_is_not_attempted():
    def all_reduce_ring(X):
        raise NotImplementedError

    assert checks.all_reduce_ring(all_reduce_ring).status == checks.NOT_YET


def model(after=0.0, empty=False, sort=True):
    def step_model(step, exchange_s, cap):
        free_s = after * step.backward_end_s
        size = 0
        gradients = sorted(step.gradients, key=lambda g: g.ready_s) if sort else step.gradients
        for gradient in gradients:
            size += gradient.bytes
            if size >= cap:
                free_s = max(free_s, gradient.ready_s) + exchange_s(size)
                size = 0
        if size or empty:
            free_s = max(free_s, gradient.ready_s) + exchange_s(size)
        return step.end_s + max(0, free_s - step.backward_end_s)

    return step_model


def nothing_overlaps(step, exchange_s, cap):
    return step.end_s + exchange_s(sum(g.bytes for g in step.gradients))


def all_overlaps(step, exchange_s, cap):
    """Plausible: the lower bound."""
    return max(step.end_s, exchange_s(sum(g.bytes for g in step.gradients)))


def one_by_one(step, exchange_s, cap):
    """Plausible: no buckets, so a latency for each gradient."""
    return model()(step, exchange_s, 0)


def forgets_the_last(step, exchange_s, cap):
    """Plausible: what does not fill a bucket never goes."""
    ordered = sorted(step.gradients, key=lambda g: g.ready_s)
    free_s = size = 0
    for gradient in ordered:
        size += gradient.bytes
        if size >= cap:
            free_s, size = max(free_s, gradient.ready_s) + exchange_s(size), 0
    return step.end_s + max(0, free_s - step.backward_end_s)


def forgets_the_update(step, exchange_s, cap):
    """Plausible: the later of two ends."""
    waits_s = model()(step, exchange_s, cap) - step.end_s
    return max(step.end_s, step.backward_end_s + waits_s)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (nothing_overlaps, "that is t1 + t2, as if nothing were sent beside backward"),
        (all_overlaps, "that is max(t1, t2), as if the exchange began with the step"),
        (one_by_one, "the first two gradients fill a bucket at 4 ms"),
        (forgets_the_last, "and the last 2 ms, until 108 ms"),
        (forgets_the_update, "the update comes after the last bucket"),
        (model(after=1.0), "expected 0.114 s, got 0.124 s"),
        (model(sort=False), "then the network is idle until 38 ms"),
        (model(empty=True), "nothing is left for another one"),
        (lambda step, exchange_s, cap: exchange_s, "expected a number of seconds"),
    ],
)
def test_a_model_that_is_wrong_is_told_what_happens_when(answer, reason):
    verdict = checks.step_model(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_bars_are_those_of_the_answer_between_the_bounds():
    verdict = checks.step_model(nothing_overlaps)
    bars = verdict.picture["bars"]
    assert sum(bars["your step"].values()) == pytest.approx(122)
    assert bars["your step"] == pytest.approx(bars["t1 + t2"])
    assert sum(bars["max(t1, t2)"].values()) == pytest.approx(102)


def test_the_cases_by_hand_are_what_the_package_says():
    for case in core.CASES:
        gradients = [scaling.Gradient(int(size * 10**6), ready / 1e3)
                     for ready, size in case.gradients]  # fmt: skip
        step = scaling.DeviceStep(case.backward_end / 1e3, case.end / 1e3, tuple(gradients))
        latency, rate = case.network
        found_s = scaling.step_s(
            step,
            lambda nbytes, latency=latency, rate=rate: (latency + nbytes / 1e6 / rate) / 1e3,
            bucket_bytes=case.cap * 10**6,
        )
        assert found_s == pytest.approx(case.expected / 1e3)


@pytest.mark.parametrize("name", ["all_reduce_ring", "step_model"])
def test_whatever_a_core_returns_is_judged(name):
    for value in GARBAGE:
        verdict = getattr(checks, name)(lambda *_, value=value: value)
        assert verdict.status == checks.WRONG, (value, verdict)
