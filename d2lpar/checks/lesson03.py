"""The exercises of lesson 03."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .. import machines
from ..vgpu.api.simulation import record, simulate
from .verdict import Wrong, exercise, few, is_whole, largest_difference

ALL_WORK = 0.9  # of the FLOP of a whole batch: the last operations may be others


@exercise
def shares(answer: Callable[[int, list[float]], list[int]]) -> str:
    """`shares(batch_size, speeds)`: how many images for each of some unequal devices."""
    for batch_size, speeds in ((256, [1, 1]), (240, [2, 1]), (512, [3, 1, 1]), (999, [1, 2, 3, 4])):
        got = list(answer(batch_size, list(speeds)))
        call = f"shares({batch_size}, {speeds})"
        if len(got) != len(speeds) or not all(is_whole(n) and n >= 0 for n in got):
            raise Wrong(f"{call}: expected {len(speeds)} whole numbers, got {got}")
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


@exercise
def all_reduce_buckets(answer: Callable[[list[list[torch.Tensor]]], None]) -> str:
    """`all_reduce_buckets(grads)`: sum lists of gradients over devices with few copies."""
    shapes = [(20, 1, 3, 3), (20,), (5, 4), (5,), (3, 5), (3,), (2, 3), (2,)]
    for n in (2, 3, 4):
        with simulate("8x-v100-pcie", n, with_values=True) as devices:
            generator = torch.Generator().manual_seed(n)
            host = [
                [torch.randint(-9, 10, s, generator=generator).float() for s in shapes]
                for _ in devices
            ]
            grads = [[g.to(d) for g in rank] for rank, d in zip(host, devices, strict=True)]
            with record() as timeline:
                answer([list(rank) for rank in grads])
            _check_sums(host, grads)
            copies, limit = len(timeline.where(lambda s: s.kind == "copy")), 2 * n * (n - 1)
            if copies > limit:
                raise Wrong(
                    f"the sums are right, but on {n} devices it took {copies} copies for "
                    f"{len(shapes)} tensors; expected at most {limit}, whatever the number of "
                    "tensors: each copy pays the latency of the link"
                )
    return "right sums everywhere, and the number of copies does not grow with the tensors"


def _check_sums(host: list[list[torch.Tensor]], grads: list[list[torch.Tensor]]) -> None:
    for i in range(len(host[0])):
        expected = torch.stack([rank[i] for rank in host]).sum(0)
        for rank, tensors in enumerate(grads):
            got = tensors[i].cpu()
            if not torch.equal(got, expected):
                raise Wrong(
                    f"on {len(host)} devices, gradient {i} on device {rank}: expected the sum "
                    f"{few(expected)}, got {few(got)}. {_why_no_sum(got, expected, len(host))}"
                )


def _why_no_sum(got: torch.Tensor, expected: torch.Tensor, n: int) -> str:
    if got.shape == expected.shape and torch.allclose(n * got, expected):
        return f"That is the average; do not divide by {n}"
    return "Was it written into the tensors that came in?"


@exercise
def accumulate(answer: Callable[..., None]) -> str:
    """`accumulate(loss, X, y, params, pieces)`: the gradient of a batch, in less memory."""
    with simulate(machines.DEFAULT, 1, with_values=True) as (device,):
        generator = torch.Generator().manual_seed(3)
        X = torch.rand(480, 64, generator=generator).to(device)
        y = torch.rand(480, generator=generator).to(device)
        start = [torch.rand(64, 512, generator=generator), torch.rand(512, 1, generator=generator)]
        expected, whole_bytes, flops = _accumulated(_whole_batch, X, y, start, 1)
        assert expected is not None  # `_whole_batch` leaves a gradient everywhere
        for pieces in (4, 7):
            got, peak_bytes, did = _accumulated(answer, X, y, start, pieces)
            if got is None:
                raise Wrong("expected a gradient in every parameter's .grad, got None")
            gaps = [
                largest_difference(g, e) / e.abs().max().item()
                for g, e in zip(got, expected, strict=True)
            ]
            if not all(gap <= 1e-4 for gap in gaps):  # a gap of NaN is no small one
                raise Wrong(
                    f"with {pieces} pieces the gradient differs from the whole batch's by "
                    f"{max(gaps):.1%}: expected their sum, over all images"
                )
            if did < ALL_WORK * flops:
                raise Wrong(
                    f"the gradient is right, but the device of X computed {did / 1e6:.0f} MFLOP; "
                    f"expected {flops / 1e6:.0f}: all pieces are computed there, one after the "
                    "other. You have no other device"
                )
            if peak_bytes > whole_bytes / 2:
                raise Wrong(
                    f"the gradient is right, but {pieces} pieces took {peak_bytes:,} bytes beside "
                    f"data and parameters; the whole batch {whole_bytes:,}: expected half of it at "
                    "most. Call backward() on each piece, so that its activations are freed"
                )
    return "the gradient of the whole batch, in less than half of the memory"


def _accumulated(
    work: Callable[..., None],
    X: torch.Tensor,
    y: torch.Tensor,
    start: list[torch.Tensor],
    pieces: int,
) -> tuple[list[torch.Tensor] | None, int, int]:
    """The gradients that `work` leaves, the most memory that it held meanwhile, and its FLOP.

    Both are read from the timeline: `reset_peak_memory_stats` in an answer does not change it.
    """
    vgpu = torch.get_device_module(X.device)
    params = [p.to(X.device).requires_grad_() for p in start]
    held = vgpu.memory_allocated(X.device)
    with record() as timeline:
        work(_loss, X, y, params, pieces)
    peak = max((sample.bytes for sample in timeline.memory), default=held) - held
    flops = sum(span.flops for span in timeline.on(X.device, "compute"))
    grads = [p.grad.cpu() for p in params if p.grad is not None]
    return (grads if len(grads) == len(params) else None), peak, flops


def _loss(X: torch.Tensor, y: torch.Tensor, params: Sequence[torch.Tensor]) -> torch.Tensor:
    return ((torch.relu(X @ params[0]) @ params[1]).squeeze(1) - y).square().sum()


def _whole_batch(loss: Callable, X: torch.Tensor, y: torch.Tensor, params: list, _: int) -> None:
    loss(X, y, params).backward()
