"""The exercises of lesson 05."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import nn

from ..trials import multi_gpu_concise as trials
from ..trials.calling import Called
from ..trials.multi_gpu_concise import RANKS, Rung
from ..trials.plain import Seen
from .verdict import (
    Wrong,
    exercise,
    few,
    is_tensor,
    is_whole,
    largest_difference,
    values_of,
)

TOLERANCE = 1e-4  # of float32 statistics
FLOAT_BYTES = 4

FASTER = 1.01  # a rung is at least so many times as fast as the one below
ALL_WORK = 0.9  # of the FLOP of the rung below: averaging takes a few, in one way or another


@exercise
def shards_seen(answer: Called) -> str:
    """`shards_seen(images, devices)`: the images of each DataParallel replica that gets any."""
    source = random.Random(4)
    drawn = [(source.randrange(1, 600), source.randrange(1, 17)) for _ in range(40)]
    for images, devices in [(30, 2), (10, 4), (5, 4), (3, 8), *drawn]:
        expected = [len(shard) for shard in torch.empty(images).chunk(devices)]
        got = answer(images, devices)
        listed = isinstance(got, list) and all(is_whole(shard) for shard in got)
        if listed and got == expected:
            continue
        if not listed:
            why = "expected a list of whole numbers"
        elif sum(got) != images:
            why = f"these are {sum(got)} images; every image must go somewhere, once"
        elif 0 in got:
            why = "a replica without images is not made: it would run a batch of size zero"
        else:
            why = (
                "torch's scatter cuts with chunk(): all shards have the size of the first, rounded "
                "up, and the last gets what is left; the step lasts as long as the largest shard"
            )
        raise Wrong(f"shards_seen({images}, {devices}): expected {expected}, got {got!r}: {why}")
    return "what torch's scatter does: equal shards, rounded up, the last one smaller"


@exercise
def bucket_plan(answer: Called) -> str:
    """`bucket_plan(sizes_bytes, first_bytes, cap_bytes)`: DDP's buckets, in order of sending."""
    for sizes_bytes, first_bytes, cap_bytes in _gradients():
        expected = _torchs_buckets(sizes_bytes, first_bytes, cap_bytes)
        got = answer(list(sizes_bytes), first_bytes, cap_bytes)
        if not _is_plan(got) or got != expected:
            raise Wrong(
                f"bucket_plan({sizes_bytes}, {first_bytes}, {cap_bytes}): expected {expected}, "
                f"got {got}: {_what_is_wrong(got, len(sizes_bytes))}"
            )
    return "the buckets of torch's own DistributedDataParallel"


def _gradients() -> Iterable[tuple[list[int], int, int]]:
    yield [40, 40, 40, 40, 40], 60, 100
    yield [400, 20, 100, 40, 60], 100, 160  # limits that are reached exactly
    yield [8, 8, 4000, 8, 8], 16, 32  # one that is larger than any bucket
    yield [12, 8, 8], 1000, 2000  # less than a bucket
    source = random.Random(5)
    for count in (10, 13, 16):
        sizes_bytes = [FLOAT_BYTES * source.randrange(1, 60) for _ in range(count)]
        yield sizes_bytes, 100, 400


def _torchs_buckets(sizes_bytes: list[int], first_bytes: int, cap_bytes: int) -> list[list[int]]:
    """What DDP makes after its first step, when gradients came from the last to the first."""
    from ..vgpu.ranks.private import (
        c10d as c10d_private,  # not every build of torch has torch.distributed
    )

    order = list(reversed(range(len(sizes_bytes))))
    gradients = [torch.empty(sizes_bytes[i] // FLOAT_BYTES, device="meta") for i in order]
    plan, _ = c10d_private.assign_buckets(
        gradients, [first_bytes, cap_bytes], [False] * len(order), order
    )
    return plan


def _is_plan(plan: object) -> TypeGuard[list[list[int]]]:
    return isinstance(plan, list) and all(
        isinstance(bucket, list) and all(map(is_whole, bucket)) for bucket in plan
    )


def _what_is_wrong(plan: object, count: int) -> str:
    if not _is_plan(plan):
        return "expected a list of lists of numbers"
    sent = [i for bucket in plan for i in bucket]
    if sorted(sent) != list(range(count)):
        return "every parameter is in one bucket; the last bucket is sent even if it is not full"
    if sent != sorted(sent, reverse=True):
        return (
            "backward computes the gradients of the last parameters first; a bucket that begins "
            "with the first ones is not complete, and not sent, before backward has ended"
        )
    if [] in plan:
        return "an empty bucket sends nothing, and all-reducing it costs time on every rank"
    return (
        "a bucket is closed as soon as it holds at least its limit, first_bytes for the first and "
        "cap_bytes for all others. It often holds more: a gradient is never cut in two"
    )


@exercise
def whole_batch(answer: Called) -> str:
    """`whole_batch(counts, means, variances)`: a batch's mean and variance from its shards'."""
    generator = torch.Generator().manual_seed(6)
    for sizes in ((16, 16), (9, 9, 9), (20, 20, 3), (7, 1, 12, 30)):
        shards = [
            torch.randn(size, 3, generator=generator) + 2 * torch.randn(3, generator=generator)
            for size in sizes
        ]
        got = answer(
            torch.tensor(sizes),
            torch.stack([shard.mean(0) for shard in shards]),
            torch.stack([shard.var(0, correction=0) for shard in shards]),
        )
        _check_statistics(got, torch.cat(shards), sizes)
    return "the statistics of the whole batch, from three small tensors"


def _check_statistics(got: object, batch: torch.Tensor, sizes: tuple[int, ...]) -> None:
    channels, call = batch.shape[1], f"with shards of {list(sizes)} values"
    if not (
        isinstance(got, tuple | list)
        and len(got) == 2
        and all(is_tensor(t) and values_of(t).shape == (channels,) for t in got)
    ):
        raise Wrong(
            f"{call}: expected two tensors of {channels} channels, (mean, variance), got {got!r}"
        )
    mean, variance = batch.mean(0), batch.var(0, correction=0)
    if not largest_difference(got[0], mean) < TOLERANCE:
        raise Wrong(
            f"{call}: expected the means {few(mean)}, got {few(got[0])}: every value counts "
            "once, so a shard counts by the number of its values; else the last, small shard "
            "would have as much to say as a full one"
        )
    if not largest_difference(got[1], variance) < TOLERANCE * variance.max():
        raise Wrong(
            f"{call}: the means are right, but expected the variances {few(variance)}, got "
            f"{few(got[1])}: values vary inside their shard, and the shards' means vary, "
            "too; each shard counts by its values. Divided by n, not n - 1: that is what batch "
            "norm normalises with, on one device"
        )


# The ladder: four ways to average the gradients of all ranks


@exercise(on_clock=True, gives_a_value=False)
def flat(answer: Called) -> str:
    """`flat(net, loss)`: backward, then one all-reduce of all gradients."""
    return _climbs(answer, "one by one", _one_by_one, "Is there one all-reduce only?")


@exercise(on_clock=True, gives_a_value=False)
def overlapped(answer: Called) -> str:
    """`overlapped(net, loss)`: each gradient is sent while backward goes on."""
    return _climbs(
        answer,
        "flat",
        _flat,
        "Does each gradient start its all-reduce in a hook, with async_op=True, and does nothing "
        "wait before backward has ended?",
    )


@exercise(on_clock=True, gives_a_value=False)
def bucketed(answer: Called) -> str:
    """`bucketed(net, loss)`: gradients are sent in buckets while backward goes on."""
    return _climbs(
        answer,
        "overlapped",
        _overlapped,
        "Is a bucket sent as soon as it is full, with async_op=True? One that is too large starts "
        "too late, and small ones pay a latency each",
    )


def _climbs(answer: Called, lower_name: str, lower: Rung, hint: str) -> str:
    """Check values, then the time of a rung of the ladder against the one below it.

    It is timed before anything is said of its values, so that a wrong one is drawn, too.
    """
    averages, found = answer.tried(trials.averaged), answer.tried(trials.timed)
    _check_averages(averages)
    below = _timed_once(lower)
    took_s, sent_bytes, flops = found["seconds"], found["sent_bytes"], found["flops"]
    lower_s, expected_bytes = below["seconds"], below["sent_bytes"]
    expected_flops = below["flops"]
    told = f"{took_s * 1e3:.1f} ms per step on {RANKS} GPUs, {lower_name} {lower_s * 1e3:.1f} ms"
    if sent_bytes != expected_bytes:
        raise Wrong(
            f"on ResNet-18 a rank all-reduces {sent_bytes / 1e6:.1f} MB per step; its gradients "
            f"have {expected_bytes / 1e6:.1f} MB, and each goes once"
        )
    if flops < ALL_WORK * expected_flops:
        raise Wrong(
            f"on ResNet-18 a rank computes {flops / 1e9:.0f} GFLOP per step; expected "
            f"{expected_flops / 1e9:.0f}, of forward and backward: call loss.backward(), for "
            "every network"
        )
    if took_s * FASTER > lower_s:
        raise Wrong(f"right values, but not faster: {told}. {hint}")
    return f"{told}: {lower_s / took_s:.2f} times as fast (simulated)"


def _check_averages(found: dict) -> None:
    """Of three ranks and two steps: what is left over shows in the second."""
    if found["hazards"]:
        raise Wrong(
            "the optimizer may read gradients before they have come: call wait() of every "
            "all-reduce before you return, and before you read what it sums"
        )
    ranks = found["ranks"]
    for step in range(trials.STEPS):
        for name in ranks[0][step]:
            own = [values_of(rank[step][name][0]) for rank in ranks]
            for rank, each in zip(ranks, own, strict=True):
                _check_average(rank[step][name][1], each, torch.stack(own).sum(0), step + 1, name)


def _check_average(
    got: Seen | None, own: torch.Tensor, total: torch.Tensor, step: int, name: str
) -> None:
    where = f"step {step}, gradient of {name}"
    expected = total / trials.FEW_RANKS
    if got is None:
        raise Wrong(f"{where}: there is none; call loss.backward()")
    if largest_difference(got, expected) < TOLERANCE:
        return
    if step > 1:
        why = (
            "step 1 was right, so it left something behind: are hooks of the step before still "
            "there (remove() them), and does every step begin with empty lists?"
        )
    elif largest_difference(got, total) < TOLERANCE:
        why = "that is the sum of all ranks; divide it by the number of ranks"
    elif largest_difference(got, own) < TOLERANCE:
        why = "that is the rank's own; all-reduce it, and write the result back into p.grad"
    else:
        why = _why_not_average(values_of(got), expected)
    raise Wrong(f"{where}: expected the average over ranks, {few(expected)}, got {few(got)}: {why}")


def _why_not_average(got: torch.Tensor, expected: torch.Tensor) -> str:
    got, expected = got.detach().cpu(), expected.cpu()
    times = ((got * expected).sum() / expected.square().sum()).item()
    if largest_difference(got, times * expected) < TOLERANCE:
        return f"that is {times:.3g} times the average; divide once, by dist.get_world_size()"
    return "does every gradient get its own part of what was sent?"


@functools.cache
def _timed_once(lower: Rung) -> dict[str, Any]:
    """A rung of the course's own: it takes the same time whenever it is simulated."""
    return trials.timed(lower)


def _one_by_one(net: nn.Module, loss: torch.Tensor) -> None:
    loss.backward()
    for gradient in _gradients_of(net):
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def _flat(net: nn.Module, loss: torch.Tensor) -> None:
    loss.backward()
    gradients = _gradients_of(net)
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    parts = together.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _overlapped(net: nn.Module, loss: torch.Tensor) -> None:
    works: list[Any] = []

    def send(parameter: torch.Tensor) -> None:
        gradient = _gradient_of(parameter)
        gradient /= dist.get_world_size()
        works.append(dist.all_reduce(gradient, async_op=True))

    hooks = [p.register_post_accumulate_grad_hook(send) for p in net.parameters()]
    loss.backward()
    for work in works:
        work.wait()
    for hook in hooks:
        hook.remove()


def _gradients_of(net: nn.Module) -> list[torch.Tensor]:
    return [_gradient_of(parameter) for parameter in net.parameters()]


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None, "backward has been there"
    return parameter.grad
