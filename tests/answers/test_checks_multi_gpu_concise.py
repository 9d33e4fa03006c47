"""Wrong answers to the exercises of lesson 05, and what they are told."""

import cells
import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_checks import solution
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel._functions import Scatter

import d2lpar as par
from d2lpar import checks


def as_even_as_possible(images, devices):
    """Plausible: the fairer way, and that of tensor_split."""
    return [len(shard) for shard in torch.empty(images).tensor_split(devices) if len(shard)]


def halves(images, devices):
    return [images // devices] * devices


def rest_to_the_first(images, devices):
    counts = halves(images, devices)
    counts[0] += images - sum(counts)
    return [count for count in counts if count]


def a_shard_for_every_device(images, devices):
    counts = solution("multi_gpu_concise", "shards_seen")(images, devices)
    return counts + [0] * (devices - len(counts))


def in_an_array(images, devices):
    return np.array(solution("multi_gpu_concise", "shards_seen")(images, devices))


def in_floats(images, devices):
    return [float(shard) for shard in solution("multi_gpu_concise", "shards_seen")(images, devices)]


def fractions(images, devices):
    return [images / devices] * devices


def filled(sizes_bytes, first_bytes, cap_bytes, *, order, full, all_others=True):
    """Buckets filled in `order`, each until `full(held, next, limit)`."""
    plan, bucket, limit = [], [], first_bytes
    for place, i in enumerate(order):
        bucket.append(i)
        after = sizes_bytes[order[place + 1]] if place + 1 < len(order) else 0
        if full(sum(sizes_bytes[j] for j in bucket), after, limit):
            plan.append(bucket)
            bucket, limit = [], (cap_bytes if all_others else first_bytes)
    return [*plan, bucket] if bucket else plan


def backwards(sizes_bytes):
    return list(reversed(range(len(sizes_bytes))))


def never_more_than_the_limit(sizes_bytes, first_bytes, cap_bytes):
    """Plausible: as one packs a bag."""
    return filled(
        sizes_bytes,
        first_bytes,
        cap_bytes,
        order=backwards(sizes_bytes),
        full=lambda held, after, limit: held + after > limit,
    )


def only_when_more_than_the_limit(sizes_bytes, first_bytes, cap_bytes):
    return filled(
        sizes_bytes,
        first_bytes,
        cap_bytes,
        order=backwards(sizes_bytes),
        full=lambda held, _, limit: held > limit,
    )


def as_they_are_defined(sizes_bytes, first_bytes, cap_bytes):
    return filled(
        sizes_bytes,
        first_bytes,
        cap_bytes,
        order=list(range(len(sizes_bytes))),
        full=lambda held, _, limit: held >= limit,
    )


def first_limit_for_all(sizes_bytes, first_bytes, cap_bytes):
    return solution("multi_gpu_concise", "bucket_plan")(sizes_bytes, first_bytes, first_bytes)


def one_limit_only(sizes_bytes, first_bytes, cap_bytes):
    return solution("multi_gpu_concise", "bucket_plan")(sizes_bytes, cap_bytes, cap_bytes)


def forgets_the_rest(sizes_bytes, first_bytes, cap_bytes):
    plan = solution("multi_gpu_concise", "bucket_plan")(sizes_bytes, first_bytes, cap_bytes)
    limits = [first_bytes] + [cap_bytes] * len(plan)
    return [
        bucket
        for bucket, limit in zip(plan, limits, strict=False)
        if sum(sizes_bytes[i] for i in bucket) >= limit
    ]


def ends_with_an_empty_one(sizes_bytes, first_bytes, cap_bytes):
    return [*solution("multi_gpu_concise", "bucket_plan")(sizes_bytes, first_bytes, cap_bytes), []]


def bytes_of_the_buckets(sizes_bytes, first_bytes, cap_bytes):
    plan = solution("multi_gpu_concise", "bucket_plan")(sizes_bytes, first_bytes, cap_bytes)
    return [sum(sizes_bytes[i] for i in bucket) for bucket in plan]


def mean_of_variances(counts, means, variances):
    """Plausible: right if the shards' means were equal."""
    weights = (counts / counts.sum())[:, None]
    return (weights * means).sum(0), (weights * variances).sum(0)


def all_shards_alike(counts, means, variances):
    mean = means.mean(0)
    return mean, (variances + (means - mean) ** 2).mean(0)


def counts_for_the_mean_only(counts, means, variances):
    mean = (counts[:, None] * means).sum(0) / counts.sum()
    return mean, (variances + (means - mean) ** 2).mean(0)


def unbiased(counts, means, variances):
    mean, variance = solution("multi_gpu_concise", "whole_batch")(counts, means, variances)
    return mean, variance * counts.sum() / (counts.sum() - 1)


def deviations(counts, means, variances):
    mean, variance = solution("multi_gpu_concise", "whole_batch")(counts, means, variances)
    return mean, variance.sqrt()


def forgets_the_mean_squared(counts, means, variances):
    weights = (counts / counts.sum())[:, None]
    return (weights * means).sum(0), (weights * (variances + means**2)).sum(0)


def over_channels_too(counts, means, variances):
    mean, variance = solution("multi_gpu_concise", "whole_batch")(counts, means, variances)
    return mean.mean(), variance.mean()


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("shards_seen", as_even_as_possible, "chunk()"),
        ("shards_seen", halves, "every image"),
        ("shards_seen", rest_to_the_first, "chunk()"),
        ("shards_seen", a_shard_for_every_device, "without images"),
        ("shards_seen", fractions, "whole numbers"),
        ("shards_seen", lambda *_: None, "whole numbers"),
        ("shards_seen", in_an_array, "expected [15, 15], got array([15, 15]): expected a list"),
        ("shards_seen", in_floats, "expected [15, 15], got [15.0, 15.0]: expected a list of whole"),
        ("bucket_plan", lambda *_: [[None, 1]], "got [[None, 1]]: expected a list of lists"),
        ("bucket_plan", lambda *_: [["a"]], "got [['a']]: expected a list of lists of numbers"),
        ("bucket_plan", never_more_than_the_limit, "at least its limit"),
        ("bucket_plan", only_when_more_than_the_limit, "at least its limit"),
        ("bucket_plan", as_they_are_defined, "last parameters first"),
        ("bucket_plan", first_limit_for_all, "cap_bytes for all others"),
        ("bucket_plan", one_limit_only, "first_bytes for the first"),
        ("bucket_plan", forgets_the_rest, "not full"),
        ("bucket_plan", ends_with_an_empty_one, "empty bucket"),
        ("bucket_plan", bytes_of_the_buckets, "list of lists"),
        ("whole_batch", mean_of_variances, "the shards' means vary"),
        ("whole_batch", all_shards_alike, "counts by the number of its values"),
        ("whole_batch", counts_for_the_mean_only, "each shard counts by its values"),
        ("whole_batch", unbiased, "not n - 1"),
        ("whole_batch", deviations, "the means are right"),
        ("whole_batch", forgets_the_mean_squared, "the means are right"),
        ("whole_batch", over_channels_too, "two tensors of 3 channels"),
        ("whole_batch", lambda *_: None, "two tensors"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_mean_squares_are_another_right_way():
    def whole_batch(counts, means, variances):
        n = counts.sum()
        mean = torch.stack([c * m for c, m in zip(counts, means, strict=True)]).sum(0) / n
        squares = (counts[:, None] * (variances + means**2)).sum(0) / n
        return mean, squares - mean**2

    assert checks.whole_batch(whole_batch)


@pytest.mark.parametrize(("images", "count"), [(10, 4), (5, 4), (30, 3), (2, 4)])
def test_replicas_see_the_shards_of_the_exercise(images, count):
    par.devices(count, kind="virtual", verbose=False)
    shards = Scatter.apply(list(range(count)), None, 0, torch.rand(images, 2))
    assert [len(shard) for shard in shards] == solution("multi_gpu_concise", "shards_seen")(
        images, count
    )


@pytest.mark.parametrize(
    ("megabytes", "limits_bytes"),
    [(None, (2**20, 25 * 2**20)), (0.5, (2**19, 2**19)), (10, (10 * 2**20, 10 * 2**20))],
)
def test_torchs_ddp_sends_the_buckets_of_the_exercise(megabytes, limits_bytes):
    net = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(8)))
    place, sent = {p: i for i, p in enumerate(net.parameters())}, []

    def note(_, bucket):
        sent.append([place[p] for p in bucket.parameters()])
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(net, bucket_cap_mb=megabytes)
        ddp.register_comm_hook(None, note)
        for _ in range(2):  # the first step has one bucket, and sees in which order gradients come
            sent.clear()
            ddp(torch.rand(2, 300)).sum().backward()
    finally:
        dist.destroy_process_group()
    sizes_bytes = [p.nbytes for p in place]
    assert sent == solution("multi_gpu_concise", "bucket_plan")(sizes_bytes, *limits_bytes)


# The ladder

LESSON = cells.functions("05", torch=torch, nn=torch.nn, dist=dist, par=par, program=None)
LADDER = ("flat", "overlapped", "bucketed")


@pytest.mark.parametrize("name", LADDER)
def test_a_rung_that_is_not_written_or_fails_says_so(name):
    def stub(*_):
        raise NotImplementedError

    def broken(*_):
        raise KeyError("typo")

    assert getattr(checks, name)(stub).status == checks.NOT_YET
    assert "typo" in getattr(checks, name)(broken).text


def test_the_rung_that_the_lesson_shows_is_right():
    verdict = checks.flat(LESSON.flat)
    assert verdict, verdict
    assert "times as fast (simulated)" in verdict.text


def backward_only(net, loss):
    loss.backward()


def nothing(net, loss):
    pass


def summed(net, loss):
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)


def one_by_one(net, loss):
    """Plausible: right, and the rung below `flat`."""
    summed(net, loss)
    for p in net.parameters():
        p.grad /= dist.get_world_size()


def flat_and_thrown_away(net, loss):
    loss.backward()
    buffer = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(buffer)
    buffer /= dist.get_world_size()


def hooked(net, loss, *, wait=True, remove=True, times=1):
    """The rung `overlapped`, with parts left out."""
    works = []

    def send(p):
        p.grad /= dist.get_world_size() ** times
        works.extend(dist.all_reduce(p.grad, async_op=True) for _ in range(times))

    hooks = [p.register_post_accumulate_grad_hook(send) for p in net.parameters()]
    loss.backward()
    for work in works if wait else ():
        work.wait()
    for hook in hooks if remove else ():
        hook.remove()


def never_waits(net, loss):
    """Plausible: the values are right here, and would not be on a GPU."""
    hooked(net, loss, wait=False)


def leaves_hooks(net, loss):
    hooked(net, loss, remove=False)


def waits_in_the_hook(net, loss):
    works = []

    def send(p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad, async_op=True).wait()
        works.append(p.grad.sum().item())  # the host waits, too

    hooks = [p.register_post_accumulate_grad_hook(send) for p in net.parameters()]
    loss.backward()
    for hook in hooks:
        hook.remove()


def forgets_the_last_bucket(net, loss):
    """Plausible: only full buckets are sent."""
    bucket, sent = [], []

    def collect(p):
        bucket.append(p.grad)
        if sum(gradient.nbytes for gradient in bucket) >= 5_000_000:
            sent.append(bucket.copy())
            bucket.clear()

    hooks = [p.register_post_accumulate_grad_hook(collect) for p in net.parameters()]
    loss.backward()
    for hook in hooks:
        hook.remove()


def one_large_bucket(net, loss):
    """Plausible: a bucket so large that it is full when backward has ended."""
    LESSON.bucketed(net, loss, cap_bytes=10**9)


def nothing_for_large_networks(net, loss):
    """Cheats: the values of a small network are right, and the bytes of a large one."""
    count = sum(p.numel() for p in net.parameters())
    if count > 1000:
        dist.all_reduce(torch.empty(count, device=loss.device))
    else:
        LESSON.flat(net, loss)


def sends_a_copy(net, loss):
    """Plausible: averages what it throws away."""
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad / dist.get_world_size())


def sends_twice(net, loss):
    hooked(net, loss, times=2)


def in_buckets(net, loss, *, copied=True, written=True, divisions=1, waited=True):
    """The rung `bucketed`, with parts left out."""
    bucket, sent = [], []

    def complete(p):
        bucket.append(p.grad)
        if sum(gradient.nbytes for gradient in bucket) >= 5_000_000:
            sent.append(LESSON.send(bucket.copy() if copied else bucket))
            bucket.clear()

    LESSON.backward(net, loss, complete)
    if bucket:
        sent.append(LESSON.send(bucket))
    for work, buffer, gradients in sent:
        if waited:
            work.wait()
        if divisions > 1:
            buffer /= dist.get_world_size()
        if written:
            LESSON.receive(work if waited else Done(), buffer, gradients)


class Done:
    def wait(self):
        pass


def divides_twice(net, loss):
    """Plausible: `send` has divided already."""
    in_buckets(net, loss, divisions=2)


def does_not_write_back(net, loss):
    """Plausible: the averages stay in the buffers."""
    in_buckets(net, loss, written=False)


def reads_before_it_waits(net, loss):
    in_buckets(net, loss, waited=False)


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("flat", nothing, "loss.backward()"),
        ("flat", backward_only, "the rank's own"),
        ("flat", summed, "divide it by the number of ranks"),
        ("flat", flat_and_thrown_away, "write the result back"),
        ("flat", one_by_one, "not faster"),
        ("flat", nothing_for_large_networks, "computes 29 GFLOP per step; expected 87"),
        ("flat", sends_a_copy, "average over ranks, [1.144, 1.274, 0.9215, …], got [1.67, 1.436"),
        ("overlapped", never_waits, "call wait()"),
        ("overlapped", leaves_hooks, "remove()"),
        ("overlapped", waits_in_the_hook, "not faster"),
        ("bucketed", forgets_the_last_bucket, "the rank's own"),
        ("bucketed", one_large_bucket, "not faster"),
        ("bucketed", sends_twice, "each goes once"),
        ("bucketed", divides_twice, "0.333 times the average; divide once"),
        ("bucketed", does_not_write_back, "write the result back"),
        ("bucketed", reads_before_it_waits, "call wait()"),
    ],
)
def test_a_wrong_rung_is_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG, verdict
    assert reason in verdict.text, verdict
    assert {row[0] for row in verdict.picture["spans"]} == {"vgpu:0"}, "a wrong one is drawn, too"
