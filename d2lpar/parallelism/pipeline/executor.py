"""Running a schedule: stages on devices, micro-batches through them, gradients as of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
from torch import nn

from ...timeline.inputs import checked
from .batch_run import BatchRun, Loss
from .conformance import require
from .operations import FORWARD, Operation, Slot, orders
from .schedules import in_slots, one_f_one_b
from .transfers import Channel

Schedule = Callable[[int, int], Iterable[Slot]]


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

    @checked
    def __init__(
        self,
        stages: Iterable[nn.Module],
        devices: Iterable[torch.device | str],
        schedule: Schedule = one_f_one_b,
    ) -> None:
        self.stages = list(stages)
        self.devices = [_device(device) for device in devices]
        self.schedule = schedule
        if not (self.stages and self.devices):
            raise ValueError(
                f"a pipeline needs stages and devices, and was given {len(self.stages)} and "
                f"{len(self.devices)}: one of each at least"
            )
        self.stage_devices = [self.devices[s % len(self.devices)] for s in range(len(self.stages))]
        _check_parameters(self.stages, self.stage_devices)
        for stage, place in zip(self.stages, self.stage_devices, strict=True):
            _move(stage, place)
        neighbours = {ends for pair in pairwise(self.stage_devices) for ends in (pair, pair[::-1])}
        self.channels = {ends: Channel(*ends) for ends in neighbours}

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
        batch too small, a loss that is no single number or a schedule of another number of stages,
        `ScheduleError` for one that cannot be run: sends here do not block.
        """
        pieces = _cut(inputs.detach().to(self.stage_devices[0]), micro_batches)
        wanted = _cut(targets.to(self.stage_devices[-1]), micro_batches)
        run = BatchRun(self.stages, self.stage_devices, self.channels, pieces, wanted, loss)
        for operation in self._operations(micro_batches):
            run.perform(operation)
        return torch.stack([run.losses[m] for m in range(micro_batches)])

    @torch.no_grad()
    def __call__(self, inputs: torch.Tensor, *, micro_batches: int = 1) -> torch.Tensor:
        """The network's outputs for a batch, on the last device, without gradients.

        Nothing has to come back, so that no schedule is needed. Raises ValueError as `step` does.
        """
        pieces = _cut(inputs.detach().to(self.stage_devices[0]), micro_batches)
        run = BatchRun(self.stages, self.stage_devices, self.channels, pieces)
        stages = range(len(self.stages))
        for slot in range(micro_batches + len(stages) - 1):
            for stage in reversed(stages):  # what is nearly through goes first
                if 0 <= slot - stage < micro_batches:
                    run.perform(Operation(FORWARD, stage, slot - stage))
        return torch.cat([run.outputs[m] for m in range(micro_batches)])

    def _operations(self, micro_batches: int) -> list[Operation]:
        """What the schedule says, in an order in which nothing is queued before what it needs."""
        planned = orders(self.schedule(len(self.devices), micro_batches))
        count = 1 + max((op.stage for order in planned for op in order), default=-1)
        if count != len(self.stages):
            raise ValueError(
                f"the schedule runs {count} stages on {len(self.devices)} devices, and the "
                f"pipeline has {len(self.stages)}: cut the network into {count}, or choose another "
                "schedule or number of devices"
            )
        require(planned, stages=count, micro_batches=micro_batches, receives_ahead=None)
        return [op for slot in in_slots(planned) for op in slot if op is not None]


_CHOICES = "give those that par.devices(2) returns, or names of GPUs ('cuda:0'), or 'cpu'"


def _device(which: torch.device | str) -> torch.device:
    try:
        return torch.device(which)
    except RuntimeError:
        raise ValueError(f"no device is called {which!r}: {_CHOICES}") from None


def _move(stage: nn.Module, device: torch.device) -> None:
    """ValueError for a kind of device that this torch was built without."""
    try:
        stage.to(device)
    except AssertionError as error:
        raise ValueError(f"there is no device {str(device)!r} ({error}): {_CHOICES}") from error


def _cut(batch: torch.Tensor, micro_batches: int) -> Sequence[torch.Tensor]:
    if not 1 <= micro_batches <= len(batch):
        raise ValueError(
            f"a batch of {len(batch)} samples cannot be cut into {micro_batches} micro-batches: "
            f"ask for 1 to {len(batch)}"
        )
    return batch.tensor_split(micro_batches)


def _check_parameters(stages: Sequence[nn.Module], stage_devices: Sequence[torch.device]) -> None:
    """ValueError if stages on different devices have a parameter in common."""
    first: dict[nn.Parameter, int] = {}
    for s, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            other = first.setdefault(parameter, s)
            if stage_devices[other] != stage_devices[s]:
                raise ValueError(
                    f"stages {other} and {s} share the parameter {name!r} and are on "
                    f"different devices, {stage_devices[other]} and {stage_devices[s]}: give each "
                    "its own, or put both into one stage"
                )
