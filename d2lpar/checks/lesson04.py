"""The exercises of lesson 04."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import torch

from .verdict import Wrong, exercise, largest_difference

TOLERANCE = 1e-4  # of float32 statistics
FLOAT_BYTES = 4


@exercise
def shards_seen(answer: Callable[[int, int], list[int]]) -> str:
    """`shards_seen(images, devices)`: the images of each DataParallel replica that gets any."""
    source = random.Random(4)
    drawn = [(source.randrange(1, 600), source.randrange(1, 17)) for _ in range(40)]
    for images, devices in [(30, 2), (10, 4), (5, 4), (3, 8), *drawn]:
        expected = [len(shard) for shard in torch.empty(images).chunk(devices)]
        got = answer(images, devices)
        if got == expected:
            continue
        if not isinstance(got, list) or not all(isinstance(shard, int) for shard in got):
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
        raise Wrong(f"shards_seen({images}, {devices}): expected {expected}, got {got}: {why}")
    return "what torch's scatter does: equal shards, rounded up, the last one smaller"


@exercise
def bucket_plan(answer: Callable[[list[int], int, int], list[list[int]]]) -> str:
    """`bucket_plan(sizes_bytes, first_bytes, cap_bytes)`: DDP's buckets, in order of sending."""
    for sizes_bytes, first_bytes, cap_bytes in _gradients():
        expected = _torchs_buckets(sizes_bytes, first_bytes, cap_bytes)
        got = answer(list(sizes_bytes), first_bytes, cap_bytes)
        if got != expected:
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
    from ..vgpu.ranks import c10d_private  # not every build of torch has torch.distributed

    order = list(reversed(range(len(sizes_bytes))))
    gradients = [torch.empty(sizes_bytes[i] // FLOAT_BYTES, device="meta") for i in order]
    plan, _ = c10d_private.assign_buckets(
        gradients, [first_bytes, cap_bytes], [False] * len(order), order
    )
    return plan


def _what_is_wrong(plan: object, count: int) -> str:
    if not isinstance(plan, list) or not all(isinstance(bucket, list) for bucket in plan):
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
def whole_batch(
    answer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> str:
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
        and all(torch.is_tensor(t) and t.shape == (channels,) for t in got)
    ):
        raise Wrong(
            f"{call}: expected two tensors of {channels} channels, (mean, variance), got {got!r}"
        )
    mean, variance = batch.mean(0), batch.var(0, correction=0)
    if not largest_difference(got[0], mean) < TOLERANCE:
        raise Wrong(
            f"{call}: expected the means {_some(mean)}, got {_some(got[0])}: every value counts "
            "once, so a shard counts by the number of its values; else the last, small shard "
            "would have as much to say as a full one"
        )
    if not largest_difference(got[1], variance) < TOLERANCE * variance.max():
        raise Wrong(
            f"{call}: the means are right, but expected the variances {_some(variance)}, got "
            f"{_some(got[1])}: values vary inside their shard, and the shards' means vary, "
            "too; each shard counts by its values. Divided by n, not n - 1: that is what batch "
            "norm normalises with, on one device"
        )


def _some(tensor: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.3f}" for value in tensor.tolist()) + "]"
