"""One batch on its way through a pipeline: its passes, and what stages hand on to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .operations import BACKWARD, FORWARD, INPUTS, WEIGHTS, Operation
from .split_backward import SplitBackward
from .transfers import Channel, Transfer

Tensors = tuple[torch.Tensor, ...]
Loss = Callable[..., torch.Tensor]  # of the last stage's outputs and the targets
Channels = Mapping[tuple[torch.device, torch.device], Channel]


@dataclass
class Passed:
    """What a backward pass needs of a forward pass; the outputs themselves may be freed."""

    leaves: Tensors  # that stand for the inputs
    edges: list[GradientEdge | None]  # of the outputs; None for one that needs no gradient
    parts: SplitBackward | None = None


class BatchRun:
    """Performs operations on the micro-batches of one batch, in any order that they allow.

    Stage s is on `stage_devices[s]`. At the end there are `losses` by micro-batch, each times its
    share of the batch; without a `loss` there are `outputs`.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        stage_devices: Sequence[torch.device],
        channels: Channels,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor] = (),
        loss: Loss | None = None,
    ) -> None:
        self._stages, self._stage_devices, self._channels = stages, stage_devices, channels
        self._last = len(self._stages) - 1
        self._inputs, self._targets, self._loss = inputs, targets, loss
        self._samples = sum(map(len, inputs))
        self.outputs: dict[int, torch.Tensor] = {}
        self.losses: dict[int, torch.Tensor] = {}
        # By the stage and the micro-batch that they are for.
        self._activations: dict[tuple[int, int], list[Transfer]] = {}
        self._gradients: dict[tuple[int, int], list[Transfer | None]] = {}
        self._passed: dict[tuple[int, int], Passed] = {}

    def perform(self, operation: Operation) -> None:
        """Do an operation whose needs are there; an exception gets a note that names it."""
        kind, stage, m = operation
        work = {
            FORWARD: self._forward,
            BACKWARD: self._backward,
            INPUTS: self._backward_inputs,
            WEIGHTS: self._backward_weights,
        }[kind]
        try:
            work(stage, m)
        except Exception as error:
            place = self._stage_devices[stage]
            error.add_note(f"This was {operation}: micro-batch {m} in stage {stage}, on {place}.")
            raise

    # --- operations ---------------------------------------------------------------------------

    def _forward(self, stage: int, m: int) -> None:
        inputs, leaves = ((self._inputs[m],), ()) if stage == 0 else self._received(stage, m)
        outputs = self._stages[stage](*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if stage < self._last:
            channel = self._channel(stage, stage + 1)
            self._activations[stage + 1, m] = [channel.send(y) for y in outputs]
        elif self._loss is None:
            (self.outputs[m],) = outputs
        else:
            outputs = (_number(self._loss(*outputs, self._targets[m])),)
            self.losses[m] = outputs[0].detach() * self._share(m)
        if self._loss is not None:
            edges = [get_gradient_edge(y) if y.requires_grad else None for y in outputs]
            self._passed[stage, m] = Passed(leaves, edges)

    def _backward(self, stage: int, m: int) -> None:
        passed = self._passed.pop((stage, m))
        torch.autograd.backward(*self._roots(stage, m, passed))
        self._send_back(stage, m, [x.grad for x in passed.leaves])

    def _backward_inputs(self, stage: int, m: int) -> None:
        passed = self._passed[stage, m]
        wanted = [x for x in passed.leaves if x.requires_grad]
        found: Iterator[torch.Tensor | None] = iter(())
        if wanted:  # else the other part is the whole
            passed.parts = SplitBackward(*self._roots(stage, m, passed), wanted)
            found = iter(passed.parts.inputs_part())
            passed.edges = []  # they hold what only the first part needed
        gradients = [next(found) if x.requires_grad else None for x in passed.leaves]
        self._send_back(stage, m, gradients)

    def _backward_weights(self, stage: int, m: int) -> None:
        passed = self._passed.pop((stage, m))
        if passed.parts is None:
            torch.autograd.backward(*self._roots(stage, m, passed))
        else:
            passed.parts.weights_part()

    def _share(self, m: int) -> float:
        return len(self._inputs[m]) / self._samples

    def _roots(
        self, stage: int, m: int, passed: Passed
    ) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """Where a backward pass begins, and with which gradients: the loss is a mean."""
        if stage == self._last:
            gradients: list[torch.Tensor | None] = [torch.full_like(self.losses[m], self._share(m))]
        else:
            sent = self._gradients.pop((stage, m))
            gradients = [None if one is None else one.received() for one in sent]
        roots = [
            (edge, gradient)
            for edge, gradient in zip(passed.edges, gradients, strict=True)
            if edge is not None and gradient is not None
        ]
        return [edge for edge, _ in roots], [gradient for _, gradient in roots]

    # --- between stages -----------------------------------------------------------------------

    def _channel(self, stage: int, other: int) -> Channel:
        return self._channels[self._stage_devices[stage], self._stage_devices[other]]

    def _send_back(self, stage: int, m: int, gradients: Iterable[torch.Tensor | None]) -> None:
        if stage > 0:
            channel = self._channel(stage, stage - 1)
            sent = [None if g is None else channel.send(g) for g in gradients]
            self._gradients[stage - 1, m] = sent

    def _received(self, stage: int, m: int) -> tuple[Tensors, Tensors]:
        """What the stage before has sent, and leaves that get the gradients of it."""
        values = []
        leaves = []
        for sent in self._activations.pop((stage, m)):
            value = sent.received()
            leaves.append(value.detach().requires_grad_(sent.requires_grad))
            values.append(_Entrance.apply(leaves[-1], [value]) if sent.requires_grad else value)
        return tuple(values), tuple(leaves)


class _Entrance(torch.autograd.Function):
    """Where gradients leave a stage. Its input may be changed in place, as no leaf may be."""

    @staticmethod
    def forward(ctx: object, leaf: torch.Tensor, value: list[torch.Tensor]) -> torch.Tensor:  # noqa: ARG004
        return value[0]

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004
        return gradient, None


def _number(loss: torch.Tensor) -> torch.Tensor:
    if loss.dim():
        raise ValueError(
            "loss(outputs, targets) must be one number, the mean over the samples, not a tensor "
            f"of shape {list(loss.shape)}: take its mean"
        )
    return loss
