"""Puzzles on virtual GPUs: spread, broadcast, overlap, wait little, and keep the order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from ...trials import gpus as trials
from ...trials.calling import Called
from ...trials.plain import type_name
from ..verdict import Wrong
from .evidence import TEXT_NOTHING, Evidence, listed, same
from .puzzle import Outcome

EIGHT = [f"vgpu:{i}" for i in range(8)]
TEXT_LOSSES = "expected {count} losses as numbers of Python, got {got}"
TEXT_LOSS = "loss {i} is not that of this training: {got:.6g}"
TEXT_PARAMETERS = "the losses are right, but parameter {i} is not what training leaves"


def _flops(products: int, size: int) -> float:
    return 2.0 * products * size**3


def spread(answer: Called, seed: int) -> Outcome:
    """`spread(inputs, work, devices)`: [work(X)], on GPU 0, of inputs on GPU 0, by eight GPUs."""
    seen = Evidence(answer.tried(trials.spread, seed), trials.BOX)
    host = trials.squares(trials.spread_sizes(seed), seed)
    results = listed(seen.result, len(host), "results")
    for i, (got, X) in enumerate(zip(results, host, strict=True)):
        same(got, trials.four_products(X), EIGHT[0], f"result {i}")
    seen.require_order()
    flops = sum(_flops(trials.SPREAD_PRODUCTS, size) for size in trials.SPREAD_SIZES)
    seen.require_work(flops, len(EIGHT))
    return _timed(seen, "eight GPUs on one GPU's work")


def broadcast(answer: Called, seed: int) -> Outcome:
    """`broadcast(x, devices)`: a copy of x, which lies on GPU 0, on each device, in their order."""
    seen = Evidence(answer.tried(trials.broadcast, seed), trials.BOX)
    host = trials.random(seed, trials.BROADCAST_NUMBERS)
    copies = listed(seen.result, len(EIGHT), "tensors")
    for i, (copy, device) in enumerate(zip(copies, EIGHT, strict=True)):
        same(copy, host, device, f"copy {i}")
    seen.require_order()
    seen.require_few_waits(0)
    seen.require_bytes(host.nbytes)
    return _timed(seen, "everybody has the 67 MB")


def three_lanes(answer: Called, seed: int) -> Outcome:
    """`three_lanes(inputs, outputs, work, device)`: in, compute and out at the same time.

    `outputs[i]` becomes `work(inputs[i])`; both are page-locked memory of the host.
    """
    seen = Evidence(answer.tried(trials.three_lanes, seed), trials.PAIR)
    host = trials.squares((trials.LANE_SIZE,) * trials.LANES, seed)
    outputs = listed(seen.seen("outputs"), len(host), "outputs")
    for i, (output, X) in enumerate(zip(outputs, host, strict=True)):
        same(output, trials.two_products(X), "cpu", f"outputs[{i}]")
    seen.require_order()
    seen.require_work(trials.LANES * _flops(2, trials.LANE_SIZE), 1)
    seen.require_bytes(sum(X.nbytes for X in host), host=True)
    return _timed(seen, "three lanes at once")


def unsynced(answer: Called, seed: int) -> Outcome:
    """`unsynced(weights, batches, rate)`: train in place; the losses, as floats, of all steps."""
    seen = Evidence(answer.tried(trials.unsynced, seed), trials.PAIR)
    expected, after = _trained(*trials.training(seed))
    losses, steps = seen.result, trials.STEPS
    if losses is None:
        raise Wrong(TEXT_NOTHING.format(what="…"))
    if not (
        isinstance(losses, list | tuple)
        and len(losses) == steps
        and all(isinstance(loss, float) for loss in losses)
    ):
        raise Wrong(TEXT_LOSSES.format(count=steps, got=_told(losses)))
    for i, (got, right) in enumerate(zip(losses, expected, strict=True)):
        if not abs(got - right) <= 1e-3 * abs(right):
            raise Wrong(TEXT_LOSS.format(i=i, got=got))
    weights = listed(seen.seen("weights"), len(after), "weights")
    for i, (own, left) in enumerate(zip(weights, after, strict=True)):
        if own.values.shape != left.shape or not torch.allclose(
            own.values, left, rtol=1e-3, atol=1e-4
        ):
            raise Wrong(TEXT_PARAMETERS.format(i=i))
    seen.require_few_waits(1)
    # Forward is three products a step, backward five: nobody needs the gradient of X.
    seen.require_work(steps * 8 * 2.0 * trials.ROWS * trials.WIDTH**2, 1)
    return _timed(seen, "the host runs ahead, and waits once")


def _told(losses: object) -> str:
    if isinstance(losses, list | tuple):
        return f"{len(losses)}, the first of type {type_name(losses[0]) if losses else 'none'}"
    return type_name(losses)


def _trained(
    weights: Sequence[torch.Tensor],
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    rate: float,
) -> tuple[list[float], list[torch.Tensor]]:
    """Losses, and the weights after all steps."""
    weights = [W.clone().requires_grad_() for W in weights]
    losses = []
    for X, y in batches:
        loss = ((F.relu(F.relu(X @ weights[0]) @ weights[1]) @ weights[2] - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for W, gradient in zip(weights, gradients, strict=True):
                W -= rate * gradient
        losses.append(loss.item())
    return losses, [W.detach() for W in weights]


def relay(answer: Called, seed: int) -> Outcome:
    """`relay(inputs, first, second, devices)`: second(first(X) on GPU 1), no hazard, no wait."""
    seen = Evidence(answer.tried(trials.relay, seed), trials.PAIR)
    host = trials.squares((trials.RELAY_SIZE,) * trials.RELAYS, seed)
    results = listed(seen.result, len(host), "results")
    for i, (got, X) in enumerate(zip(results, host, strict=True)):
        same(got, trials.square(trials.two_products(X)), EIGHT[1], f"result {i}")
    seen.require_order()
    seen.require_few_waits(0)
    seen.require_work(len(host) * _flops(3, trials.RELAY_SIZE), 2)
    seen.require_bytes(sum(X.nbytes for X in host))
    return _timed(seen, "in order, and nobody waited")


def sum_gradients(answer: Called, seed: int) -> Outcome:
    """`sum_gradients(gradients, devices)`: in place, gradients[i][j] becomes the sum over i."""
    seen = Evidence(answer.tried(trials.sum_gradients, seed), trials.BOX)
    expected = [
        torch.stack(tensors).sum(0) for tensors in zip(*trials.gradients(seed), strict=True)
    ]
    ranks = listed(seen.seen("gradients"), len(EIGHT), "lists of gradients")
    for rank, (own, device) in enumerate(zip(ranks, EIGHT, strict=True)):
        each = listed(own, len(expected), f"gradients of rank {rank}")
        for j, (got, right) in enumerate(zip(each, expected, strict=True)):
            same(got, right, device, f"gradients[{rank}][{j}]")
    seen.require_order()
    # Whatever the way, a rank's own summands leave it, but for a share that it sums itself.
    seen.require_bytes(sum(g.nbytes for g in expected) * (1 - 1 / len(EIGHT)))
    return _timed(seen, f"{len(expected)} tensors, few messages")


def _timed(seen: Evidence, praise: str) -> Outcome:
    return Outcome(1e3 * seen.seconds, praise, seen.picture)
