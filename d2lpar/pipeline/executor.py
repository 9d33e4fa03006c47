"""Running a schedule: stages on devices, micro-batches through them, gradients as of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .conformance import require
from .operations import BACKWARD, FORWARD, INPUTS, WEIGHTS, Operation, Slot, orders
from .schedules import in_slots, one_f_one_b
from .transfers import Channel, Transfer
from .two_parts import TwoParts

Schedule = Callable[[int, int], Iterable[Slot]]
Tensors = tuple[torch.Tensor, ...]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Pipeline:
    """Stages of a network on devices, run micro-batch by micro-batch as a schedule says.

        net = nn.Sequential(…)
        pipeline = Pipeline([net[:3], net[3:]], par.devices(2), gpipe)
        losses = pipeline.step(X, y, F.cross_entropy, micro_batches=4)
        optimizer.step()

    Stage s is moved to `devices[s % len(devices)]`; it takes what the stage before it returns, a
    tensor or a tuple of tensors. `schedule(ranks, micro_batches)` yields slots of operations; of
    `interleaved_1f1b` and the like use `functools.partial` for other options. Devices compute on
    their current streams, and send on others meanwhile. Virtual and real GPUs do, and so does
    "cpu", as often as it is named, one stage after the other.

    Raises ValueError for no stages or devices, or for a parameter in stages on different devices.
    """

    def __init__(
        self,
        stages: Iterable[nn.Module],
        devices: Iterable[torch.device | str],
        schedule: Schedule = one_f_one_b,
    ) -> None:
        self.stages = list(stages)
        self.devices = [torch.device(device) for device in devices]
        self.schedule = schedule
        if not (self.stages and self.devices):
            raise ValueError(
                f"a pipeline needs stages and devices, and was given {len(self.stages)} and "
                f"{len(self.devices)}"
            )
        self.places = [self.devices[s % len(self.devices)] for s in range(len(self.stages))]
        _check_parameters(self.stages, self.places)
        for stage, place in zip(self.stages, self.places, strict=True):
            stage.to(place)
        ways = {way for pair in pairwise(self.places) for way in (pair, pair[::-1])}
        self.channels = {way: Channel(*way) for way in ways}

    def step(
        self, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, *, micro_batches: int
    ) -> torch.Tensor:
        """Run a batch forward and backward, and add its gradients to the parameters' `.grad`.

        They are those of one device that is given the whole batch, if `loss(outputs, targets)` is a
        mean over its samples and no layer mixes samples; with batch normalisation, those of one
        that is given the micro-batches one by one. Each device draws random numbers, such as those
        of dropout, from a generator of its own. The batch is cut into `micro_batches` as by
        `torch.tensor_split`, whose pieces differ by one sample at most. Inputs and targets are
        moved to the first and the last stage's device.

        Returns the loss of each micro-batch times its share of the batch, on the last device:
        their sum is the loss of the batch. The host does not wait for it. Raises ValueError for a
        batch too small or a schedule of another number of stages, `ScheduleError` for one that
        cannot be run.
        """
        pieces = _cut(inputs.detach().to(self.places[0]), micro_batches)
        wanted = _cut(targets.to(self.places[-1]), micro_batches)
        run = _Run(self, pieces, wanted, loss)
        for operation in self._operations(micro_batches):
            run.perform(operation)
        return torch.stack(run.losses)

    @torch.no_grad()
    def __call__(self, inputs: torch.Tensor, *, micro_batches: int = 1) -> torch.Tensor:
        """The network's outputs for a batch, on the last device, without gradients.

        Nothing has to come back, so that no schedule is needed. Raises ValueError as `step` does.
        """
        run = _Run(self, _cut(inputs.detach().to(self.places[0]), micro_batches))
        stages = range(len(self.stages))
        for slot in range(micro_batches + len(stages) - 1):
            for stage in reversed(stages):  # what is nearly through goes first
                if 0 <= slot - stage < micro_batches:
                    run.perform(Operation(FORWARD, stage, slot - stage))
        return torch.cat(run.outputs)

    def _operations(self, micro_batches: int) -> list[Operation]:
        """What the schedule says, in an order in which nothing is queued before what it needs."""
        planned = orders(self.schedule(len(self.devices), micro_batches))
        count = 1 + max(op.stage for order in planned for op in order)
        if count != len(self.stages):
            raise ValueError(
                f"the schedule runs {count} stages on {len(self.devices)} devices, and the "
                f"pipeline has {len(self.stages)}: cut the network into {count}, or choose another "
                "schedule or number of devices"
            )
        require(planned, stages=count, micro_batches=micro_batches)
        return [op for slot in in_slots(planned) for op in slot if op is not None]


@dataclass
class _Passed:
    """What a backward pass needs of a forward pass; the outputs themselves may be freed."""

    leaves: Tensors  # that stand for the inputs
    edges: list[GradientEdge | None]  # of the outputs; None for one that needs no gradient
    parts: TwoParts | None = None


class _Run:
    """One batch on its way through a pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor] = (),
        loss: Loss | None = None,
    ) -> None:
        self._stages, self._places = pipeline.stages, pipeline.places
        self._channels = pipeline.channels
        self._last = len(self._stages) - 1
        self._inputs, self._targets, self._loss = inputs, targets, loss
        self._samples = sum(map(len, inputs))
        self.outputs: list[torch.Tensor | None] = [None] * len(inputs)  # without a loss
        self.losses: list[torch.Tensor | None] = [None] * len(inputs)
        self._sent: dict[tuple[str, int, int], list[Transfer | None]] = {}
        self._passed: dict[tuple[int, int], _Passed] = {}

    def perform(self, operation: Operation) -> None:
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
            place = self._places[stage]
            error.add_note(f"This was {operation}: micro-batch {m} in stage {stage}, on {place}.")
            raise

    # --- operations ---------------------------------------------------------------------------

    def _forward(self, stage: int, m: int) -> None:
        inputs, leaves = ((self._inputs[m],), ()) if stage == 0 else self._received(stage, m)
        outputs = self._stages[stage](*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if stage < self._last:
            self._send(FORWARD, stage, stage + 1, m, outputs)
        elif self._loss is None:
            (self.outputs[m],) = outputs
        else:
            outputs = (self._loss(*outputs, self._targets[m]),)
            self.losses[m] = outputs[0].detach() * self._share(m)
        if self._loss is not None:
            edges = [get_gradient_edge(y) if y.requires_grad else None for y in outputs]
            self._passed[stage, m] = _Passed(leaves, edges)

    def _backward(self, stage: int, m: int) -> None:
        passed = self._passed.pop((stage, m))
        torch.autograd.backward(*self._roots(stage, m, passed))
        if stage > 0:
            self._send(BACKWARD, stage, stage - 1, m, [x.grad for x in passed.leaves])

    def _backward_inputs(self, stage: int, m: int) -> None:
        passed = self._passed[stage, m]
        wanted = [x for x in passed.leaves if x.requires_grad]
        if not wanted:
            return  # nobody needs them: the other part is the whole
        passed.parts = TwoParts(*self._roots(stage, m, passed), wanted)
        found = iter(passed.parts.inputs_part())
        passed.edges = []  # they hold what only the first part needed
        gradients = [next(found) if x.requires_grad else None for x in passed.leaves]
        self._send(BACKWARD, stage, stage - 1, m, gradients)

    def _backward_weights(self, stage: int, m: int) -> None:
        passed = self._passed.pop((stage, m))
        if passed.parts is None:
            torch.autograd.backward(*self._roots(stage, m, passed))
        else:
            passed.parts.weights_part()

    def _share(self, m: int) -> float:
        return len(self._inputs[m]) / self._samples

    def _roots(
        self, stage: int, m: int, passed: _Passed
    ) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """Where a backward pass begins, and with which gradients: the loss is a mean."""
        if stage == self._last:
            gradients = [torch.full_like(self.losses[m], self._share(m))]
        else:
            sent = self._sent.pop((BACKWARD, stage, m))
            gradients = [None if one is None else one.received() for one in sent]
        roots = [
            (edge, gradient)
            for edge, gradient in zip(passed.edges, gradients, strict=True)
            if not (edge is None or gradient is None)
        ]
        return [edge for edge, _ in roots], [gradient for _, gradient in roots]

    # --- between stages -----------------------------------------------------------------------

    def _send(
        self, kind: str, stage: int, other: int, m: int, tensors: Iterable[torch.Tensor | None]
    ) -> None:
        channel = self._channels[self._places[stage], self._places[other]]
        self._sent[kind, other, m] = [None if t is None else channel.send(t) for t in tensors]

    def _received(self, stage: int, m: int) -> tuple[Tensors, Tensors]:
        """What the stage before has sent, and leaves that get the gradients of it."""
        values = []
        leaves = []
        for sent in self._sent.pop((FORWARD, stage, m)):
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


def _cut(batch: torch.Tensor, micro_batches: int) -> Sequence[torch.Tensor]:
    if not 1 <= micro_batches <= len(batch):
        raise ValueError(
            f"a batch of {len(batch)} samples cannot be cut into {micro_batches} micro-batches: "
            f"ask for 1 to {len(batch)}"
        )
    return batch.tensor_split(micro_batches)


def _check_parameters(stages: Sequence[nn.Module], places: Sequence[torch.device]) -> None:
    """ValueError if stages on different devices have a parameter in common."""
    first: dict[nn.Parameter, int] = {}
    for s, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            other = first.setdefault(parameter, s)
            if places[other] != places[s]:
                raise ValueError(
                    f"stages {other} and {s} share the parameter {name!r} and are on different "
                    f"devices, {places[other]} and {places[s]}: give each its own, or put both "
                    "into one stage"
                )
