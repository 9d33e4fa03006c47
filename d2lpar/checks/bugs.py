"""The bugs that multi-GPU code is prone to: whether a student's tensors or times show them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import machines
from .verdict import RIGHT, WRONG, Verdict, largest_difference

TOLERANCE = 1e-6  # of steps

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
TEXT_UPDATE = "replica {i} is off by up to {gap:.2g}: its step is {ratio:.2g} times as long. {why}"
TEXT_LONGER = "Is the summed gradient divided by the size of the whole batch?"
TEXT_SHORTER = "Did every replica get the sum of all gradients?"
TEXT_UPDATE_SAME = "{n} replicas, each with the step of one device, to {tolerance:.0e}"
TEXT_IMPOSSIBLE = (
    "{rate:.3g} FLOP/s on a device that can do {peak:.3g}: the clock was read before the work was "
    "done. Synchronise first."
)
TEXT_POSSIBLE = "{rate:.3g} FLOP/s, {share:.0%} of the device's peak"


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


def same_everywhere(data: Sequence[torch.Tensor]) -> Verdict:
    """Whether tensors on several devices hold the same values, bit by bit."""
    for i, tensor in enumerate(data):
        gap = largest_difference(tensor, data[0])
        if gap > 0:
            return Verdict(WRONG, TEXT_DIFFERENT.format(i=i, device=tensor.device, gap=gap))
    return Verdict(RIGHT, TEXT_SAME.format(n=len(data)))


def same_step(
    before: Sequence[torch.Tensor],
    replicas: Sequence[Sequence[torch.Tensor]],
    reference: Sequence[torch.Tensor],
) -> Verdict:
    """Whether all replicas took the step that leads from `before` to `reference`, to 1e-6."""
    for i, replica in enumerate(replicas):
        gap = max(largest_difference(a, r) for a, r in zip(replica, reference, strict=True))
        if gap > TOLERANCE:
            ratio = step_length(before, replica) / max(step_length(before, reference), 1e-30)
            why = TEXT_LONGER if ratio > 1 else TEXT_SHORTER
            return Verdict(WRONG, TEXT_UPDATE.format(i=i, gap=gap, ratio=ratio, why=why))
    return Verdict(RIGHT, TEXT_UPDATE_SAME.format(n=len(replicas), tolerance=TOLERANCE))


def possible_rate(flops: float, seconds: float, accelerator: machines.Accelerator) -> Verdict:
    """Whether `flops` in `seconds` is within the fp32 peak of an accelerator."""
    rate, peak = flops / seconds, accelerator.rate("float32")
    if rate > peak:
        return Verdict(WRONG, TEXT_IMPOSSIBLE.format(rate=rate, peak=peak))
    return Verdict(RIGHT, TEXT_POSSIBLE.format(rate=rate, share=rate / peak))


def step_length(start: Sequence[torch.Tensor], end: Sequence[torch.Tensor]) -> float:
    """How far parameters have moved, all together."""
    pairs = zip(start, end, strict=True)
    return sum((e.detach().cpu() - s.detach().cpu()).square().sum().item() for s, e in pairs) ** 0.5
