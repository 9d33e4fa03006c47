"""Puzzles on virtual GPUs: spread, broadcast, overlap, wait little, and keep the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from ..verdict import Wrong
from .evidence import gantt_of
from .laboratory import Laboratory, Trial, laboratory, listed, same, values
from .puzzle import Outcome

BOX, PAIR, LINKED = "8x-h100-nvswitch", "2x-v100-textbook", "4x-v100-nvlink"
TEXT_LOSSES = "expected {count} losses as numbers of Python, got {got}"
TEXT_LOSS = "loss {i}: expected {expected:.6g}, got {got:.6g}"
TEXT_PARAMETERS = "the losses are right, but parameter {i} is not what training leaves"


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _flops(products: int, size: int) -> float:
    return 2.0 * products * size**3


# --- spread ---------------------------------------------------------------------------------------

SIZES = (1280, 256, 768, 1280, 512, 1024, 256, 1024, 768, 512, 1280, 512, 1024, 256, 768, 512)
PRODUCTS = 4


def _four_products(X: torch.Tensor) -> torch.Tensor:
    Y = X
    for _ in range(PRODUCTS):
        Y = Y @ X
    return Y


def spread(answer: Callable) -> Outcome:
    """`spread(inputs, work, devices)`: [work(X)], on GPU 0, of inputs on GPU 0, by eight GPUs."""
    host = [_random(i, size, size) / size**0.5 for i, size in enumerate(SIZES)]
    with laboratory(BOX) as lab:
        inputs = [X.to(lab.devices[0]) for X in host]
        trial = lab.run(answer, inputs, _four_products, lab.devices, keeps=inputs)
        results = listed(trial.result, len(host), "results")
        for i, (got, X) in enumerate(zip(results, host, strict=True)):
            same(got, _four_products(X), lab.devices[0], f"result {i}")
        trial.require_order()
        trial.require_work(sum(_flops(PRODUCTS, size) for size in SIZES))
    return _timed(trial, "eight GPUs on one GPU's work")


# --- broadcast ------------------------------------------------------------------------------------

BROADCAST_NUMBERS = 16 * 1024 * 1024


def broadcast(answer: Callable) -> Outcome:
    """`broadcast(x, devices)`: a copy of x, which lies on GPU 0, on each device, in their order."""
    host = _random(1, BROADCAST_NUMBERS)
    with laboratory(BOX) as lab:
        x = host.to(lab.devices[0])
        trial = lab.run(answer, x, lab.devices, keeps=[x])
        copies = listed(trial.result, len(lab.devices), "tensors")
        for i, (copy, device) in enumerate(zip(copies, lab.devices, strict=True)):
            same(copy, host, device, f"copy {i}")
        trial.require_order()
        trial.require_few_waits(0)
    return _timed(trial, "everybody has the 67 MB")


# --- three lanes ----------------------------------------------------------------------------------

LANES, LANE_SIZE = 12, 1024


def _two_products(X: torch.Tensor) -> torch.Tensor:
    return X @ X @ X


def three_lanes(answer: Callable) -> Outcome:
    """`three_lanes(inputs, outputs, work, device)`: in, compute and out at the same time.

    `outputs[i]` becomes `work(inputs[i])`; both are page-locked memory of the host.
    """
    host = [_random(i, LANE_SIZE, LANE_SIZE) / LANE_SIZE**0.5 for i in range(LANES)]
    with laboratory(PAIR, 1) as lab:
        inputs = [X.pin_memory() for X in host]
        outputs = [torch.zeros_like(X).pin_memory() for X in host]
        trial = lab.run(answer, inputs, outputs, _two_products, lab.devices[0], keeps=inputs)
        for i, (output, X) in enumerate(zip(outputs, host, strict=True)):
            same(output, _two_products(X), torch.device("cpu"), f"outputs[{i}]")
        trial.require_order()
        trial.require_work(LANES * _flops(2, LANE_SIZE))
    return _timed(trial, "three lanes at once")


# --- hidden syncs ---------------------------------------------------------------------------------

STEPS, WIDTH, ROWS, RATE = 12, 512, 1024, 0.05


def unsynced(answer: Callable) -> Outcome:
    """`unsynced(weights, batches, rate)`: train in place; the losses, as floats, of all steps."""
    weights = [_random(i, WIDTH, WIDTH) / WIDTH**0.5 for i in range(3)]
    batches = [(_random(10 + i, ROWS, WIDTH), _random(40 + i, ROWS, WIDTH)) for i in range(STEPS)]
    expected, after = _trained(weights, batches)
    with laboratory(PAIR, 1) as lab:
        (gpu,) = lab.devices
        mine = [W.to(gpu).requires_grad_() for W in weights]
        data = [(X.to(gpu), y.to(gpu)) for X, y in batches]
        trial = lab.run(answer, mine, data, RATE)
        losses = trial.result
        if losses is None:
            listed(losses, STEPS, "losses")
        if not (
            isinstance(losses, list | tuple)
            and len(losses) == STEPS
            and all(isinstance(loss, float) for loss in losses)
        ):
            raise Wrong(TEXT_LOSSES.format(count=STEPS, got=_told(losses)))
        for i, (got, right) in enumerate(zip(losses, expected, strict=True)):
            if not abs(got - right) <= 1e-3 * abs(right):
                raise Wrong(TEXT_LOSS.format(i=i, expected=right, got=got))
        for i, (own, left) in enumerate(zip(mine, after, strict=True)):
            if not torch.allclose(values(own), left, rtol=1e-3, atol=1e-4):
                raise Wrong(TEXT_PARAMETERS.format(i=i))
        trial.require_few_waits(1)
        # Forward is three products a step, backward five: nobody needs the gradient of X.
        trial.require_work(STEPS * 8 * 2.0 * ROWS * WIDTH**2)
    return _timed(trial, "the host runs ahead, and waits once", host=True)


def _told(losses: object) -> str:
    if isinstance(losses, list | tuple):
        return f"{len(losses)}, the first of type {type(losses[0]).__name__ if losses else 'none'}"
    return type(losses).__name__


def _trained(
    weights: Sequence[torch.Tensor], batches: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[list[float], list[torch.Tensor]]:
    """Losses, and the weights after all steps."""
    weights = [W.clone().requires_grad_() for W in weights]
    losses = []
    for X, y in batches:
        loss = ((F.relu(F.relu(X @ weights[0]) @ weights[1]) @ weights[2] - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for W, gradient in zip(weights, gradients, strict=True):
                W -= RATE * gradient
        losses.append(loss.item())
    return losses, [W.detach() for W in weights]


# --- relay ----------------------------------------------------------------------------------------

RELAYS, RELAY_SIZE = 12, 1024


def _square(X: torch.Tensor) -> torch.Tensor:
    return X @ X


def relay(answer: Callable) -> Outcome:
    """`relay(inputs, first, second, devices)`: second(first(X) on GPU 1), no hazard, no wait."""
    host = [_random(i, RELAY_SIZE, RELAY_SIZE) / RELAY_SIZE**0.5 for i in range(RELAYS)]
    with laboratory(LINKED, 2) as lab:
        inputs = [X.to(lab.devices[0]) for X in host]
        trial = lab.run(answer, inputs, _two_products, _square, lab.devices, keeps=inputs)
        results = listed(trial.result, RELAYS, "results")
        for i, (got, X) in enumerate(zip(results, host, strict=True)):
            same(got, _square(_two_products(X)), lab.devices[1], f"result {i}")
        trial.require_order()
        trial.require_few_waits(0)
        trial.require_work(RELAYS * _flops(3, RELAY_SIZE))
    return _timed(trial, "in order, and nobody waited")


# --- gradients ------------------------------------------------------------------------------------

# What a small ResNet has: few large tensors, and many tiny ones.
SHAPES = (
    [(64, 64, 3, 3), (64,), (64,)] * 12 + [(128, 128, 3, 3), (128,), (128,)] * 12 + [(1000, 128)]
)


def sum_gradients(answer: Callable) -> Outcome:
    """`sum_gradients(gradients, devices)`: in place, gradients[i][j] becomes the sum over i."""
    host = [
        [_random(1000 * rank + j, *shape) for j, shape in enumerate(SHAPES)] for rank in range(8)
    ]
    expected = [torch.stack(tensors).sum(0) for tensors in zip(*host, strict=True)]
    with laboratory(BOX) as lab:
        gradients = [
            [tensor.to(device) for tensor in own]
            for own, device in zip(host, lab.devices, strict=True)
        ]
        trial = lab.run(answer, gradients, lab.devices)
        for rank, (own, device) in enumerate(zip(gradients, lab.devices, strict=True)):
            for j, right in enumerate(expected):
                same(own[j], right, device, f"gradients[{rank}][{j}]")
        trial.require_order()
    return _timed(trial, f"{len(SHAPES)} tensors, few messages")


def _timed(trial: Trial, praise: str, *, host: bool = False) -> Outcome:
    return Outcome(1e3 * trial.seconds, praise, gantt_of(trial.timeline, host=host))


__all__ = ["Laboratory", "broadcast", "relay", "spread", "sum_gradients", "three_lanes", "unsynced"]
