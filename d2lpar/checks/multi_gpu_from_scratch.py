"""The exercises of lesson 04."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from ..trials import multi_gpu_from_scratch as trials
from ..trials.calling import Called
from ..trials.plain import Seen, shown
from .verdict import Wrong, exercise, few, is_whole, largest_difference, values_of

ALL_WORK = 0.9  # of the FLOP of a whole batch: the last operations may be others


@exercise
def shares(answer: Called) -> str:
    """`shares(batch_size, speeds)`: how many images for each of some unequal devices."""
    for batch_size, speeds in ((256, [1, 1]), (240, [2, 1]), (512, [3, 1, 1]), (999, [1, 2, 3, 4])):
        found = answer(batch_size, list(speeds))
        call = f"shares({batch_size}, {speeds})"
        has_items = isinstance(found, Collection) and getattr(found, "ndim", 1) == 1
        got = list(found) if has_items else []
        if len(got) != len(speeds) or not all(is_whole(n) and n >= 0 for n in got):
            raise Wrong(f"{call}: expected {len(speeds)} whole numbers, got {shown(found)}")
        if sum(got) != batch_size:
            raise Wrong(f"{call}: {got} are {sum(got)} images; every image must go somewhere, once")
        ideal = batch_size / sum(speeds)
        last = max(n / speed for n, speed in zip(got, speeds, strict=True))
        if last > 1.05 * ideal:
            raise Wrong(
                f"{call}: with {got} the last device is done after {last:.1f} (images / speed); "
                f"{ideal:.1f} is possible: the step lasts as long as the slowest share"
            )
    return "no device is done more than 5 % after the ideal time"


@exercise(on_clock=True, gives_a_value=False)
def all_reduce_buckets(answer: Called) -> str:
    """`all_reduce_buckets(grads)`: sum lists of gradients over devices with few copies."""
    for n in (2, 3, 4):
        found = answer.tried(trials.all_reduce_buckets, n)
        _check_sums(trials.gradients(n), found["gradients"])
        copies, limit = found["copies"], 2 * n * (n - 1)
        if copies > limit:
            raise Wrong(
                f"the sums are right, but on {n} devices it took {copies} copies for "
                f"{len(trials.SHAPES)} tensors; expected at most {limit}, whatever the number of "
                "tensors: each copy pays the latency of the link"
            )
    return "right sums everywhere, and the number of copies does not grow with the tensors"


def _check_sums(host: list[list[torch.Tensor]], grads: list[list[Seen]]) -> None:
    for i in range(len(host[0])):
        expected = torch.stack([rank[i] for rank in host]).sum(0)
        for rank, tensors in enumerate(grads):
            got = values_of(tensors[i])
            if not torch.equal(got, expected):
                raise Wrong(
                    f"on {len(host)} devices, gradient {i} on device {rank}: expected the sum "
                    f"{few(expected)}, got {few(got)}. {_why_no_sum(got, expected, len(host))}"
                )


def _why_no_sum(got: torch.Tensor, expected: torch.Tensor, n: int) -> str:
    if got.shape == expected.shape and torch.allclose(n * got, expected):
        return f"That is the average; do not divide by {n}"
    return "Was it written into the tensors that came in?"


@exercise(on_clock=True, gives_a_value=False)
def accumulate(answer: Called) -> str:
    """`accumulate(loss, X, y, params, pieces)`: the gradient of a batch, in less memory."""
    whole = trials.accumulate(_whole_batch, 1)
    for pieces in (4, 7):
        found = answer.tried(trials.accumulate, pieces)
        if None in found["gradients"]:
            raise Wrong("expected a gradient in every parameter's .grad, got None")
        gaps = [
            largest_difference(got, expected) / values_of(expected).abs().max().item()
            for got, expected in zip(found["gradients"], whole["gradients"], strict=True)
        ]
        if not all(gap <= 1e-4 for gap in gaps):  # a gap of NaN is no small one
            raise Wrong(
                f"with {pieces} pieces the gradient differs from the whole batch's by "
                f"{max(gaps):.1%}: expected their sum, over all images"
            )
        if found["flops"] < ALL_WORK * whole["flops"]:
            raise Wrong(
                f"the gradient is right, but the device of X computed {found['flops'] / 1e6:.0f} "
                f"MFLOP; expected {whole['flops'] / 1e6:.0f}: all pieces are computed there, one "
                "after the other. You have no other device"
            )
        if found["peak_bytes"] > whole["peak_bytes"] / 2:
            raise Wrong(
                f"the gradient is right, but {pieces} pieces took {found['peak_bytes']:,} bytes "
                f"beside data and parameters; the whole batch {whole['peak_bytes']:,}: expected "
                "half of it at most. Call backward() on each piece, so that its activations are "
                "freed"
            )
    return "the gradient of the whole batch, in less than half of the memory"


def _whole_batch(loss: Callable, X: torch.Tensor, y: torch.Tensor, params: list, _: int) -> None:
    loss(X, y, params).backward()
