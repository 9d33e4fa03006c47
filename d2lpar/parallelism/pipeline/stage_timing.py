"""What the stages of a network cost: each timed by itself, on the clock of its device."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...timeline.inputs import checked
from ...vgpu.api import timing
from .costs import StageCost

Tensors = tuple[torch.Tensor, ...]

WARM_UP, REPEATS = 2, 7  # of measured passes; a simulated one takes the same time whenever it runs


@checked
def stage_costs(
    stages: Sequence[nn.Module], x: torch.Tensor | Tensors, *, accumulate: bool = True
) -> list[StageCost]:
    """The cost of each stage for a micro-batch `x`, which goes through one after the other.

    A stage takes what the one before returns: a tensor, or several as `stage(*tensors)`. All are on
    the device of `x`. On a virtual one times are simulated; of another machine, and for full-size
    networks, call this within `par.simulate(...)`. Elsewhere they are medians of measured passes.

    B computes the gradients of all parameters and inputs that have one (of the first stage: if `x`
    requires it), I those of the inputs alone, which others wait for, and W takes the rest of the
    time. Gradients of parameters are added to those of other micro-batches, unless
    `accumulate=False`: of a batch's first one. `activation_bytes` is what the inputs, what autograd
    keeps and the outputs occupy together. Parameters keep their `.grad`, buffers their values.

    Raises ValueError for an `x` without tensors.
    """
    if not _tuple(x):
        raise ValueError(f"x of stage_costs is a tensor or several, not {x!r}")
    found = []
    for stage in stages:
        inputs = _tuple(x)
        simulated = timing.clock_name(inputs[0].device) != timing.MEASURED
        with _unchanged(stage):
            passes = [
                _pass_s(stage, inputs, accumulate)
                for _ in range(1 if simulated else WARM_UP + REPEATS)
            ]
            forward_s, backward_s, inputs_s = map(
                statistics.median, zip(*passes[-REPEATS:], strict=True)
            )
            activation_bytes, x = _held(stage, inputs)
        found.append(
            StageCost(
                forward_s,
                backward_s,
                inputs_s,
                weights_s=max(0.0, backward_s - inputs_s),
                sent_bytes=_bytes_of(_tuple(x)),
                activation_bytes=activation_bytes,
                parameter_bytes=_bytes_of(stage.parameters()),
            )
        )
    return found


def _pass_s(stage: nn.Module, inputs: Tensors, accumulate: bool) -> tuple[float, float, float]:
    """Seconds of F, B and I."""
    device = inputs[0].device
    inputs = _leaves(inputs)
    own = [p for p in stage.parameters() if p.requires_grad]
    for parameter in own:
        parameter.grad = torch.zeros_like(parameter) if accumulate else None
    start_s = timing.now_s(device)
    outputs = _tuple(stage(*inputs))
    forward_s = timing.now_s(device) - start_s
    roots = [y for y in outputs if y.requires_grad]
    gradients = [torch.ones_like(y) for y in roots]

    def backward_s(leaves: list[torch.Tensor]) -> float:
        start_s = timing.now_s(device)
        if leaves and roots:
            torch.autograd.backward(roots, gradients, retain_graph=True, inputs=leaves)
        return timing.now_s(device) - start_s

    received = [t for t in inputs if t.requires_grad]
    all_s = backward_s([*received, *own])
    for leaf in received:
        leaf.grad = None
    return forward_s, all_s, backward_s(received)


def _held(stage: nn.Module, inputs: Tensors) -> tuple[int, Tensors]:
    """The bytes that a forward pass leaves in memory, and its outputs."""
    device = inputs[0].device
    if device.type == "cpu":
        inputs = _leaves(inputs)
        saved = _Saved()
        with saved:
            outputs = _tuple(stage(*inputs))
        own = {t.untyped_storage().data_ptr() for t in (*stage.parameters(), *stage.buffers())}
        for tensor in (*inputs, *outputs):
            saved.note(tensor)
        nbytes = sum(size for place, size in saved.sizes.items() if place not in own)
    else:
        module = torch.get_device_module(device)
        before = module.memory_allocated(device)
        inputs = _leaves(inputs, copy=True)
        outputs = _tuple(stage(*inputs))
        nbytes = module.memory_allocated(device) - before
    return nbytes, _leaves(outputs)


class _Saved(torch.autograd.graph.saved_tensors_hooks):
    """What autograd saves in the block: the sizes in bytes of storages, by their address."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        super().__init__(self.note, lambda tensor: tensor)

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor


@contextmanager
def _unchanged(stage: nn.Module) -> Iterator[None]:
    """Afterwards gradients and buffers, such as means of batch norm, are as they were before."""
    gradients = [(parameter, parameter.grad) for parameter in stage.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in stage.buffers() if not is_lazy(buffer)]
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for buffer, values in buffers:
            buffer.copy_(values)


def _tuple(x: torch.Tensor | Tensors) -> Tensors:
    return x if isinstance(x, tuple) else (x,)


def _leaves(tensors: Tensors, *, copy: bool = False) -> Tensors:
    detached = [t.detach().clone() if copy else t.detach() for t in tensors]
    return tuple(
        leaf.requires_grad_(t.requires_grad) for leaf, t in zip(detached, tensors, strict=True)
    )


def _bytes_of(tensors: Iterator[torch.Tensor] | Tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
