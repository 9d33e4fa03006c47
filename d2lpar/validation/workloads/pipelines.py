"""Networks cut across layers: one part after the other, in micro-batches, and their bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from ...machines.hardware import Machine
from ...parallelism.pipeline.costs import StageCost
from ...parallelism.pipeline.operations import orders
from ...parallelism.pipeline.schedules import SCHEDULES, gpipe, interleaved_1f1b
from ...parallelism.pipeline.simulation import Simulation
from ...parallelism.planner.costs.layers import backward_parts
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import gpus, seconds
from .nets.networks import resnet
from .stages import costs_of

if TYPE_CHECKING:
    from torchvision.models import ResNet

TWO_STAGES = (7, 17)  # how torchgpipe cuts an AmoebaNet of 24 layers for its baseline


def model_parallel(p: Parameters, machine: Machine) -> SimulatedRun:
    """A step of a ResNet cut in two, against the step of one GPU: how many times as long."""
    batch, image, model = _cut(p)
    split = _step_s(machine, model, batch, image, parts=2)
    alone = _step_s(machine, model, batch, image, parts=1)
    return SimulatedRun(ratio=split / alone, naive=Naive(ratio=1.0))


def pipeline(p: Parameters, machine: Machine) -> SimulatedRun:
    """How many times as many samples a second as the baseline does.

    With `micro_batch` it is PyTorch's tutorial program, against one GPU; with `micro_batches`
    GPipe (Huang et al. 2019) in the form of torchgpipe, which computes forward passes again
    before their backward pass, all but the last micro-batch's. Its authors' baseline of two stages
    and one micro-batch computes that again, too.
    """
    if (size := p.integer("micro_batch", None)) is None:
        return _gpipe(p, machine)
    batch, image, model = _cut(p)
    p.choice("baseline", {"single": 1})
    alone = _step_s(machine, model, batch, image, parts=1)
    piped = _step_s(machine, model, batch, image, parts=2, micro_batch=size)
    return SimulatedRun(ratio=alone / piped, naive=Naive(ratio=2.0))


def pipeline_bubble(p: Parameters, machine: Machine) -> SimulatedRun:
    """The share of a step in which ranks idle, as Qi et al. (2024) computed it.

    Forward, input gradients and weight gradients of a stage take what they take in a transformer
    layer; sending takes no time.
    """
    ranks, micro_batches, chunks = p.integer("stages"), p.integer("micro_batches"), 1
    schedule = p.choice("schedule", SCHEDULES)
    if schedule is interleaved_1f1b:
        chunks = p.integer("chunks")
        schedule = partial(interleaved_1f1b, chunks=chunks)
    forward_s, inputs_s, weights_s = backward_parts(machine)
    stage = StageCost(forward_s, inputs_s + weights_s, inputs_s, weights_s)
    found = Simulation.of(orders(schedule(ranks, micro_batches)), [stage] * ranks * chunks)
    rule = (ranks - 1) / (micro_batches + ranks - 1)  # of any schedule, were all parts alike
    return SimulatedRun(ratio=found.bubble, naive=Naive(ratio=rule))


# --- PyTorch's tutorial: Single-Machine Model Parallel Best Practices -----------------------------


def _cut(p: Parameters) -> tuple[int, int, str]:
    p.choice("dtype", {"float32": torch.float32})
    p.choice("split", {"after-layer2": 2})
    if p.integer("devices") != 2:
        raise ValueError("a network cut after layer2 runs on two devices")
    return p.integer("batch"), p.integer("image"), p.text("model")


def _step_s(
    machine: Machine,
    model: str,
    batch: int,
    image: int,
    *,
    parts: int,
    micro_batch: int | None = None,
) -> float:
    """Seconds of a step: the batch comes from the host, the loss is the mean squared error."""
    with gpus(machine, parts) as devices:
        first, second = _halves(resnet(model, devices[0]))
        second.to(devices[-1])
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.001)
        images, labels = torch.empty(batch, 3, image, image), torch.empty(batch, 1000)
        size = micro_batch or batch

        def step() -> None:
            optimizer.zero_grad()
            scores = _forward(first, second, images.to(devices[0]).split(size), devices[-1])
            F.mse_loss(scores, labels.to(devices[-1])).backward()
            optimizer.step()

        return seconds(step)


def _halves(net: ResNet) -> tuple[nn.Sequential, nn.Sequential]:
    head = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1, net.layer2)
    return head, nn.Sequential(net.layer3, net.layer4, net.avgpool, nn.Flatten(), net.fc)


def _forward(
    first: nn.Module,
    second: nn.Module,
    pieces: Sequence[torch.Tensor],
    device: torch.device,
) -> torch.Tensor:
    """While a piece is in the second part, the next one is queued for the first."""
    between = first(pieces[0]).to(device)
    scores = []
    for piece in pieces[1:]:
        scores.append(second(between))
        between = first(piece).to(device)
    return torch.cat([*scores, second(between)])


# --- torchgpipe -----------------------------------------------------------------------------------


def _gpipe(p: Parameters, machine: Machine) -> SimulatedRun:
    p.choice("dtype", {"float32": torch.float32})
    p.choice("checkpoint", {"except_last": True}, "except_last")
    model, image = p.text("model"), p.integer("image")
    batch, micro_batches = p.integer("batch"), p.integer("micro_batches")
    counts = _counts(p)
    if len(counts) != p.integer("devices"):
        raise ValueError(f"{len(counts)} stages need as many devices")
    shape = (-(-batch // micro_batches), 3, image, image)
    throughput = batch / gpipe_s(costs_of(model, machine, shape, counts), micro_batches, machine)
    alone_batch = p.integer("baseline_batch")
    alone_shape = (alone_batch, 3, image, image)
    if p.choice("baseline", {"single": False, "pipeline-2-stages-1-micro-batch": True}):
        alone = costs_of(model, machine, alone_shape, TWO_STAGES)
        alone_s = gpipe_s(alone, 1, machine, keeps_last=False)
    else:
        alone_s = gpipe_s(costs_of(model, machine, alone_shape, (sum(counts),)), 1, machine)
    ratio = throughput / (alone_batch / alone_s)
    return SimulatedRun(ratio=ratio, naive=Naive(ratio=float(len(counts))))


def _counts(p: Parameters) -> tuple[int, ...]:
    text = p.text("split")
    if not all(part.isdigit() for part in text.split("/")):
        raise ValueError(f"the parameter split must be counts such as 3/6/7/8, not {text!r}")
    return tuple(int(part) for part in text.split("/"))


def gpipe_s(
    costs: Sequence[StageCost],
    micro_batches: int,
    machine: Machine,
    *,
    keeps_last: bool = True,
) -> float:
    """Seconds of a step: all forwards, then all backwards in the opposite order.

    Forwards are computed again for the backwards, but for the last micro-batch if its activations
    are kept; a stage may do so while it waits for the gradient.
    """
    kept = micro_batches - 1 if keeps_last else None
    return Simulation.of(
        orders(gpipe(len(costs), micro_batches, last_first=True)),
        costs,
        machine,
        recompute=lambda backward: backward.micro_batch != kept,
    ).step_s
