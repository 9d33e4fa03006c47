"""Checks that a student can call: of exercises, and of the bugs that multi-GPU code is prone to.

An exercise is checked by running the student's function on inputs that the notebook does not show.
Every check returns a `Verdict`, whose text says what was expected, what came, and why it matters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from . import machines
from .simulation import record, simulate

RIGHT, WRONG, NOT_YET = "right", "wrong", "not attempted yet"
MARKS = {RIGHT: "✓", WRONG: "✗", NOT_YET: "○"}

TEXT_NOT_YET = "write the function, then run this cell again"
TEXT_ALIASED = (
    "replica {a} and replica {b} are one tensor in memory: each adds its gradient to the same "
    "place, and a sum over replicas then adds it to itself. Copy: tensor.to(device, copy=True)."
)
TEXT_SEPARATE = "{n} replicas, each with memory of its own"
TEXT_DIFFERENT = (
    "tensor {i} on {device} differs from the first by up to {gap:.2g}. Was the result written into "
    "the tensors, data[i][:] = …, or only bound to a name, data[i] = …?"
)
TEXT_SAME = "{n} tensors, all equal"
TEXT_UPDATE = (
    "replica {i} is off by up to {gap:.2g}: its step is {ratio:.2g} times as long. "
    "Longer: is the summed gradient divided by the whole batch? Shorter: did every replica get it?"
)
TEXT_UPDATE_SAME = "{n} replicas, each with the step of one device, to {tolerance:.0e}"
TEXT_IMPOSSIBLE = (
    "{rate:.3g} FLOP/s on a device that can do {peak:.3g}: the clock was read before the work was "
    "done. Synchronise first."
)
TEXT_POSSIBLE = "{rate:.3g} FLOP/s, {share:.0%} of the device's peak"


@dataclass(frozen=True)
class Verdict:
    """What a check found: `status` ("right", "wrong", "not attempted yet") and a text."""

    status: str
    text: str

    def __bool__(self) -> bool:
        return self.status == RIGHT

    def __repr__(self) -> str:
        return f"{MARKS[self.status]} {self.status}: {self.text}"


class _Wrong(Exception):  # noqa: N818 (it is a verdict, not an error)
    """Raised inside a check with the text of a verdict."""


def _exercise(check: Callable[[Callable], str]) -> Callable[[Callable], Verdict]:
    """Turn a check that raises `_Wrong` or returns praise into one that returns a verdict."""

    @functools.wraps(check)
    def judge(answer: Callable) -> Verdict:
        try:
            return Verdict(RIGHT, check(answer))
        except NotImplementedError:
            return Verdict(NOT_YET, TEXT_NOT_YET)
        except _Wrong as wrong:
            return Verdict(WRONG, str(wrong))
        except Exception as error:
            return Verdict(WRONG, f"your function raised {type(error).__name__}: {error}")

    return judge


# --- bugs -----------------------------------------------------------------------------------------


@torch.no_grad()
def separate_memory(replicas: Sequence[Sequence[torch.Tensor]]) -> Verdict:
    """Whether the replicas (a list of tensors each) have memory of their own.

    Tried, not guessed: the first tensor of each is overwritten for a moment.
    """
    first = [replica[0] for replica in replicas]
    for a, tensor in enumerate(first):
        before = [other.clone() for other in first]
        tensor.add_(1)
        changed = [not torch.equal(t.cpu(), b.cpu()) for t, b in zip(first, before, strict=True)]
        tensor.copy_(before[a])
        changed[a] = False
        if any(changed):
            text = TEXT_ALIASED.format(a=a, b=changed.index(True))
            return Verdict(WRONG, text)
    return Verdict(RIGHT, TEXT_SEPARATE.format(n=len(replicas)))


def same_everywhere(data: Sequence[torch.Tensor], *, tolerance: float = 0.0) -> Verdict:
    """Whether tensors on several devices hold the same values."""
    for i, tensor in enumerate(data):
        gap = _gap(tensor, data[0])
        if gap > tolerance:
            return Verdict(WRONG, TEXT_DIFFERENT.format(i=i, device=tensor.device, gap=gap))
    return Verdict(RIGHT, TEXT_SAME.format(n=len(data)))


def same_step(
    before: Sequence[torch.Tensor],
    replicas: Sequence[Sequence[torch.Tensor]],
    reference: Sequence[torch.Tensor],
    *,
    tolerance: float = 1e-6,
) -> Verdict:
    """Whether all replicas took the step that leads from `before` to `reference`."""
    for i, replica in enumerate(replicas):
        gap = max(_gap(a, r) for a, r in zip(replica, reference, strict=True))
        if gap > tolerance:
            ratio = _length(before, replica) / max(_length(before, reference), 1e-30)
            return Verdict(WRONG, TEXT_UPDATE.format(i=i, gap=gap, ratio=ratio))
    return Verdict(RIGHT, TEXT_UPDATE_SAME.format(n=len(replicas), tolerance=tolerance))


def possible_rate(flops: float, seconds: float, accelerator: machines.Accelerator) -> Verdict:
    """Whether `flops` in `seconds` is within the fp32 peak of an accelerator."""
    rate, peak = flops / seconds, accelerator.rate("float32")
    if rate > peak:
        return Verdict(WRONG, TEXT_IMPOSSIBLE.format(rate=rate, peak=peak))
    return Verdict(RIGHT, TEXT_POSSIBLE.format(rate=rate, share=rate / peak))


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.detach().cpu() - b.detach().cpu()).abs().max().item()


def _length(start: Sequence[torch.Tensor], end: Sequence[torch.Tensor]) -> float:
    pairs = zip(start, end, strict=True)
    return sum((e.detach().cpu() - s.detach().cpu()).square().sum().item() for s, e in pairs) ** 0.5


# --- exercises of lesson 03 -----------------------------------------------------------------------


@_exercise
def shares(answer: Callable[[int, list[float]], list[int]]) -> str:
    """`shares(batch_size, speeds)`: how many images for each of some unequal devices."""
    for batch_size, speeds in ((256, [1, 1]), (240, [2, 1]), (512, [3, 1, 1]), (999, [1, 2, 3, 4])):
        got = list(answer(batch_size, list(speeds)))
        call = f"shares({batch_size}, {speeds})"
        if len(got) != len(speeds) or not all(isinstance(n, int) and n >= 0 for n in got):
            raise _Wrong(f"{call}: expected {len(speeds)} whole numbers, got {got}")
        if sum(got) != batch_size:
            raise _Wrong(
                f"{call}: {got} are {sum(got)} images; every image must go somewhere, once"
            )
        ideal = batch_size / sum(speeds)
        last = max(n / speed for n, speed in zip(got, speeds, strict=True))
        if last > 1.05 * ideal:
            raise _Wrong(
                f"{call}: with {got} the last device is done after {last:.1f} (images / speed); "
                f"{ideal:.1f} is possible: the step lasts as long as the slowest share"
            )
    return "no device is done more than 5 % after the ideal time"


@_exercise
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
                raise _Wrong(
                    f"the sums are right, but on {n} devices it took {copies} copies for "
                    f"{len(shapes)} tensors; expected at most {limit}, whatever the number of "
                    "tensors: each copy pays the latency of the link"
                )
    return "right sums everywhere, and the number of copies does not grow with the tensors"


def _check_sums(host: list[list[torch.Tensor]], grads: list[list[torch.Tensor]]) -> None:
    for i in range(len(host[0])):
        expected = sum(rank[i] for rank in host)
        for rank, tensors in enumerate(grads):
            got = tensors[i].cpu()
            if not torch.equal(got, expected):
                raise _Wrong(
                    f"on {len(host)} devices, gradient {i} on device {rank}: expected the sum "
                    f"{_some(expected)}, got {_some(got)}. Was it written into the tensors that "
                    "came in?"
                )


def _some(tensor: torch.Tensor) -> str:
    values = tensor.flatten().tolist()
    return str(values[:3])[:-1] + (", …]" if len(values) > 3 else "]")


@_exercise
def accumulate(answer: Callable[..., None]) -> str:
    """`accumulate(loss, X, y, params, pieces)`: the gradient of a batch, in less memory."""
    with simulate(machines.DEFAULT, 1, with_values=True) as (device,):
        generator = torch.Generator().manual_seed(3)
        X = torch.rand(480, 64, generator=generator).to(device)
        y = torch.rand(480, generator=generator).to(device)
        start = [torch.rand(64, 512, generator=generator), torch.rand(512, 1, generator=generator)]
        expected, whole_bytes = _accumulated(_whole_batch, X, y, start, 1)
        for pieces in (4, 7):
            got, peak_bytes = _accumulated(answer, X, y, start, pieces)
            if got is None:
                raise _Wrong("expected a gradient in every parameter's .grad, got None")
            gap = max(_gap(g, e) / e.abs().max().item() for g, e in zip(got, expected, strict=True))
            if gap > 1e-4:
                raise _Wrong(
                    f"with {pieces} pieces the gradient differs from the whole batch's by "
                    f"{gap:.1%}: expected their sum, over all images"
                )
            if peak_bytes > whole_bytes / 2:
                raise _Wrong(
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
) -> tuple[list[torch.Tensor] | None, int]:
    """The gradients that `work` leaves, and the most memory that it held meanwhile."""
    vgpu = torch.get_device_module(X.device)
    params = [p.to(X.device).requires_grad_() for p in start]
    held = vgpu.memory_allocated(X.device)
    vgpu.reset_peak_memory_stats(X.device)
    work(_loss, X, y, params, pieces)
    peak = vgpu.max_memory_allocated(X.device) - held
    grads = [p.grad for p in params]
    return (None if None in grads else [g.cpu() for g in grads]), peak


def _loss(X: torch.Tensor, y: torch.Tensor, params: Sequence[torch.Tensor]) -> torch.Tensor:
    return ((torch.relu(X @ params[0]) @ params[1]).squeeze(1) - y).square().sum()


def _whole_batch(loss: Callable, X: torch.Tensor, y: torch.Tensor, params: list, _: int) -> None:
    loss(X, y, params).backward()
