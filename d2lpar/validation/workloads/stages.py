"""Stages of a pipeline as published programs cut their networks, and how long each takes."""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise

import torch
from torch import nn

from ...machines.hardware import Machine
from ...parallelism.pipeline.costs import StageCost
from ...parallelism.pipeline.stage_timing import stage_costs
from .measuring import gpus
from .nets.networks import network, torchvision_models

State = tuple[torch.Tensor, ...]


def flat_layers(model: str, device: torch.device) -> list[nn.Module]:
    """A network as a sequence of layers of states, in the grain in which torchgpipe counts them.

    A ResNet falls into single operations: its bottlenecks have 11 (He et al. 2016, figure 5).
    Raises ValueError for a network that is no sequence and no ResNet.
    """
    net = network(model, device)
    if isinstance(net, nn.Sequential):
        return list(net)
    if not isinstance(net, torchvision_models().ResNet):
        raise ValueError(f"{model} is neither a sequence of layers nor a ResNet")
    layers: list[nn.Module] = [net.conv1, net.bn1, net.relu, net.maxpool]
    for block in (b for layer in (net.layer1, net.layer2, net.layer3, net.layer4) for b in layer):
        layers += [_Stash(), block.conv1, block.bn1, nn.ReLU(), block.conv2, block.bn2, nn.ReLU()]
        layers += [block.conv3, block.bn3, _Add(block.downsample), nn.ReLU()]
    return [*layers, net.avgpool, nn.Flatten(), net.fc]


@cache  # the rows of a table have a baseline in common
def costs_of(
    model: str, machine: Machine, shape: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[StageCost, ...]:
    """Simulate stages of so many layers each, one after the other, on one GPU of a machine.

    `shape` is that of a micro-batch. Raises ValueError if the counts do not add up.
    """
    with gpus(machine) as (device,):
        layers = flat_layers(model, device)
        if sum(counts) != len(layers):
            raise ValueError(f"{model} has {len(layers)} layers, not {'+'.join(map(str, counts))}")
        cuts = pairwise(accumulate(counts, initial=0))
        stages = [_Stage(layers[first:end]) for first, end in cuts]
        x = torch.empty(shape, device=device, requires_grad=True)
        return tuple(stage_costs(stages, x, accumulate=False))


class _Stage(nn.Module):
    """Layers that hand on a state: layers of cells take all of it, others its first tensor."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *state: torch.Tensor) -> State:
        for layer in self.layers:
            if getattr(layer, "takes_state", False):
                made = layer(state if len(state) > 1 else state[0])
                state = made if isinstance(made, tuple) else (made,)
            else:
                state = (layer(state[0]), *state[1:])
        return state


class _Stash(nn.Module):
    """Keeps what comes in beside what goes on."""

    takes_state = True

    def forward(self, x: torch.Tensor) -> State:
        return x, x


class _Add(nn.Module):
    """Adds what was kept, once it has the same shape."""

    takes_state = True

    def __init__(self, downsample: nn.Module | None) -> None:
        super().__init__()
        self.downsample = downsample

    def forward(self, state: State) -> torch.Tensor:
        x, kept = state
        return x + (kept if self.downsample is None else self.downsample(kept))
