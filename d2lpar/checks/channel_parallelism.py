"""The exercises of lesson 08."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..parallelism.planner import AXES, Mesh, state_bytes
from ..trials import channel_parallelism as trials
from ..trials.calling import Called
from ..trials.plain import Seen
from .verdict import Wrong, exercise, few, is_number, is_tensor, largest_difference, values_of

ROOM = 1.05  # a number of bytes may be missed by this factor
TOLERANCE = 1e-3  # of the largest value: the values are small whole numbers


@exercise(on_clock=True)
def by_input_channels(answer: Called) -> str:
    """`by_input_channels(conv, X, devices)`: conv(X), each device with some *input* channels.

    The layer and X [images, channels, height, width] are on `devices[0]`. Each device convolves
    some channels of X with their slices of the filters, which gives a summand of all outputs; the
    result is their sum and the bias, on X's device. Gradients reach X and the layer's parameters.
    """
    for n, channels, outputs, stride in ((2, 6, 8, 1), (3, 7, 4, 2), (4, 8, 2, 1)):
        layer = trials.layer(channels, outputs, stride)
        found = answer.tried(trials.by_input_channels, n, channels, outputs, stride)
        sent_bytes = _check_layer(found, layer)
    gathered_bytes = _by_output_channels_bytes(layer, n)
    return (
        "outputs and gradients of the whole layer, each device with its share of the FLOP. "
        f"Forward, {n} devices copied {sent_bytes:,} bytes: slices of {channels} input channels "
        f"there, {n - 1} summands of all {outputs} output channels back. Split by output channels "
        f"it would be {gathered_bytes:,}: whole inputs there, slices back. Split the larger side"
    )


def _check_layer(found: dict[str, Any], conv: nn.Conv2d) -> int:
    """How many bytes the forward pass copied, if all is right."""
    X = trials.images(conv).requires_grad_()
    expected = conv(X)
    gradient = trials.whole_numbers(expected.shape, -3, seed=4)
    wanted = torch.autograd.grad(expected, [X, *conv.parameters()], gradient)
    devices, shapes = found["devices"], found["shapes"]
    _check_outputs(found["outputs"], expected, conv, shapes, devices)
    if found["gradients"] is None:
        raise Wrong("the outputs are right, but no gradient flows back. Was something detached?")
    names = ("X", "conv.weight", "conv.bias")
    for name, got, want in zip(names, found["gradients"], wanted, strict=True):
        _check_gradient(name, got, want)
    _check_split(shapes, conv)
    _check_work(dict(zip(devices, found["flops"], strict=True)), conv)
    return _check_copies(found["copied_bytes"], conv, expected, len(devices))


def _where(conv: nn.Conv2d, n: int) -> str:
    return f"{conv.in_channels} input channels on {n} devices"


def _check_outputs(
    Y: object, expected: torch.Tensor, conv: nn.Conv2d, shapes: list, devices: list[str]
) -> None:
    n, where = len(devices), _where(conv, len(devices))
    if not is_tensor(Y):
        raise Wrong(f"{where}: expected a tensor, got {Y!r}")
    if str(Y.device) != devices[0]:
        raise Wrong(f"{where}: expected the sum where X is, on {devices[0]}, got it on {Y.device}")
    if values_of(Y).shape != expected.shape:
        shape = [*values_of(Y).shape]
        raise Wrong(
            f"{where}: expected the shape {list(expected.shape)}, got {shape}: every "
            "device makes a summand of all outputs, with the layer's stride and padding"
        )
    if _equal(Y, expected):
        return
    assert conv.bias is not None  # as `layer` makes them
    bias = conv.bias.detach().view(-1, 1, 1)
    for times in (0, *range(2, n + 1)):
        if _equal(Y, expected + (times - 1) * bias):
            raise Wrong(
                f"{where}: the bias is in the sum {times} times, expected once: it belongs to an "
                "output, not to a summand"
            )
    channels = sum(filters[1] for _, filters in shapes)
    if 0 < channels < conv.in_channels:
        raise Wrong(
            f"{where}: only {channels} input channels were convolved, expected all "
            f"{conv.in_channels}: an output is a sum over all, also if their number cannot be "
            "divided by that of the devices"
        )
    raise Wrong(
        f"{where}: expected {few(expected)}, got {few(Y)}. Channel c of X meets "
        "conv.weight[:, c], and what the devices make is added up, not joined"
    )


def _check_gradient(name: str, got: Seen | None, expected: torch.Tensor) -> None:
    if got is None:
        raise Wrong(
            f"the outputs are right, but {name}.grad is None, expected {few(expected)}: training "
            "would leave it as it is. detach(), .data and new parameters cut the graph; slicing "
            "and .to() do not"
        )
    if not _equal(got, expected):
        raise Wrong(
            f"the outputs are right, but in {name}.grad expected {few(expected)}, got {few(got)}"
        )


def _check_split(shapes: list[list[list[int]]], conv: nn.Conv2d) -> None:
    """Whether it was the channels of the input that were split."""
    for inputs, filters in shapes:
        if filters[0] < conv.out_channels:
            raise Wrong(
                f"right numbers, but another split: a device computes {filters[0]} of "
                f"{conv.out_channels} output channels, and needs {inputs[1]} of "
                f"{conv.in_channels} input channels for it. Expected a slice of the input "
                "channels there, and summands of all outputs"
            )
        if inputs[0] < trials.IMAGES:
            raise Wrong(
                f"right numbers, but another split: a device gets {inputs[0]} of {trials.IMAGES} "
                "images and all filters, which is data parallelism. Expected all images, and a "
                "slice of their channels"
            )


def _check_work(flops: dict[str, int], conv: nn.Conv2d) -> None:
    n = len(flops)
    most = math.ceil(conv.in_channels / n)
    busiest = max(flops, key=lambda device: flops[device])
    share = flops[busiest] / max(sum(flops.values()), 1)
    if share > ROOM * most / conv.in_channels:
        raise Wrong(
            f"{_where(conv, n)}: right numbers, but {busiest} computes {share:.0%} of the FLOP; "
            f"expected {most / conv.in_channels:.0%} at most, {most} channels: all others wait "
            "for the busiest"
        )


def _check_copies(sent_bytes: int, conv: nn.Conv2d, Y: torch.Tensor, n: int) -> int:
    elsewhere = 1 - conv.in_channels // n / conv.in_channels  # of the channels, at most
    most = elsewhere * (trials.images(conv).nbytes + conv.weight.nbytes) + (n - 1) * Y.nbytes
    if sent_bytes > ROOM * most:
        raise Wrong(
            f"{_where(conv, n)}: right numbers, but {sent_bytes:,} bytes were copied; expected "
            f"{most:,.0f}: slices of X and of the filters there, {n - 1} summands back. Slice "
            "before you copy, and add up in one place"
        )
    return sent_bytes


def _by_output_channels_bytes(conv: nn.Conv2d, n: int) -> int:
    """What the split into as many slices of the output channels copies, without the bias."""
    X = trials.images(conv)
    return (n - 1) * X.nbytes + (n - 1) * (conv.weight.nbytes + conv(X).nbytes) // n


def _equal(got: torch.Tensor | Seen, expected: torch.Tensor) -> bool:
    limit = TOLERANCE * expected.detach().abs().max().item()
    return largest_difference(got, expected) <= limit


WHY_ZERO = (
    "without ZeRO every rank holds all 16 bytes: 2 of the parameter, 2 of its gradient, 12 of "
    "Adam, which are an fp32 copy and two moments",
    "stage 1 divides Adam's 12 bytes among the ranks, and only these",
    "stage 2 divides the gradients as well as Adam's state; the parameters are whole on every rank",
    "stage 3 divides everything, the parameters, too",
)


@exercise
def zero_bytes(answer: Called) -> str:
    """`zero_bytes(parameters, ranks, stage)`: what a rank holds of parameters, gradients and Adam.

    ZeRO stages 0 (none) to 3; 2 bytes for a parameter in fp16, 2 for its gradient, 12 for Adam's
    state in fp32: copy, momentum, variance (Rajbhandari et al., "ZeRO", 2020).
    """
    for parameters, ranks in ((7.5e9, 64), (1e9, 4), (6_000_000, 1), (1.3e10, 1024), (3e8, 3)):
        for stage, why in enumerate(WHY_ZERO):
            expected = sum(state_bytes(parameters, ranks, stage))
            got = answer(parameters, ranks, stage)
            call = f"zero_bytes({parameters:g}, {ranks}, {stage})"
            if not is_number(got):
                raise Wrong(f"{call}: expected a number of bytes, got {got!r}")
            if not math.isclose(got, expected, rel_tol=1e-6):
                if math.isclose(got * 1e9, expected, rel_tol=0.01):
                    raise Wrong(f"{call}: got {got:.4g}, which are gigabytes: expected bytes")
                raise Wrong(f"{call}: expected {_gb(expected)}, got {_gb(got)}: {why}")
    held_gb = [f"{sum(state_bytes(7.5e9, 64, stage)) / 1e9:.1f}" for stage in range(4)]
    return (
        f"7.5e9 parameters on 64 ranks: {', '.join(held_gb)} GB, as in figure 1 of the "
        "paper. Stages 1 and 2 send as much as data parallelism does, stage 3 half as much again. "
        "Activations are not in this"
    )


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.4g} GB"


WHY_AXIS = (
    "replicas are pipeline * channel ranks apart: the first index, data, changes slowest",
    "stages are channel ranks apart: the index in the middle",
    "ranks that split a layer are neighbours: the last index, channel, changes fastest",
)


@exercise
def groups_of(answer: Called) -> str:
    """`groups_of(rank, data, pipeline, channel)`: whom a rank exchanges with along each axis.

    Ranks are numbered as `torch.arange(data * pipeline * channel).view(data, pipeline, channel)`;
    three lists of ranks, of the data, the pipeline and the channel axis, itself included, sorted.
    """
    for sizes in ((2, 3, 4), (4, 2, 2), (1, 2, 8), (3, 1, 1), (2, 4, 1)):
        mesh = Mesh(*sizes)
        groups = [mesh.groups(axis) for axis in AXES]
        for rank in range(mesh.size):
            expected = [next(g for g in each if rank in g) for each in groups]
            _check_groups(answer(rank, *sizes), expected, rank, sizes)
    return (
        "the channel axis, which sends in every layer, has neighbouring ranks: with 8 GPUs a "
        "machine and channel = 8 it never leaves a machine, while data, which sends once a step, "
        "goes over the network"
    )


def _check_groups(got: object, expected: list[list[int]], rank: int, sizes: tuple) -> None:
    call = f"groups_of({rank}, {', '.join(map(str, sizes))})"
    if not (
        isinstance(got, tuple | list)
        and len(got) == len(AXES)
        and all(isinstance(group, list) for group in got)
    ):
        raise Wrong(f"{call}: expected three lists of ranks, got {got!r}")
    for name, why, group, want in zip(
        ("data", "pipeline", "channel"), WHY_AXIS, got, expected, strict=True
    ):
        if group == want:
            continue
        if rank not in group:
            why = f"rank {rank} itself is in each of its groups: it takes part in the exchange"
        elif sorted(group) == want:
            why = "sorted, so that all members of a group make the same list"
        raise Wrong(f"{call}: along {name} expected {want}, got {group}: {why}")
