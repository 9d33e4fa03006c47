"""The exercises of lesson 08."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..trials import channel_parallelism as trials
from ..trials.calling import Called
from ..trials.plain import Seen
from .verdict import Wrong, exercise, few, is_tensor, largest_difference, values_of

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


@exercise(on_clock=True)
def columns_then_rows(answer: Called) -> str:
    """`columns_then_rows(X, A, B)`: gelu(X A) B, on every rank, each with a part of the work.

    X [samples, width], A [width, 4 width] and B [4 width, width] are whole on each rank's GPU. A
    rank multiplies by its columns of A and its rows of B; one all-reduce adds what the ranks have.
    """
    for n, samples, width in ((2, 3, 4), (4, 5, 8)):
        found = answer.tried(trials.columns_then_rows, n, samples, width)
        X, A, B = trials.block(samples, width)
        hidden = F.gelu(X @ A)
        for rank, Y in enumerate(found["outputs"]):
            _check_block(Y, hidden, B, rank, found["devices"])
        _check_shares(found["flops"], samples, width)
        _check_exchanges(found["exchanges"])
    return (
        f"every rank has the output of the whole block, computes 1/{n} of it, and meets the others "
        "once: between the layers nothing is sent, because a rank's columns of X A are just what "
        "its rows of B need"
    )


def _check_block(
    Y: object, hidden: torch.Tensor, B: torch.Tensor, rank: int, devices: list[str]
) -> None:
    n, expected = len(devices), hidden @ B
    where = f"rank {rank} of {n}"
    if not is_tensor(Y):
        raise Wrong(f"{where}: expected a tensor, got {Y!r}")
    if values_of(Y).shape != expected.shape:
        raise Wrong(
            f"{where}: expected the shape {list(expected.shape)}, got {[*values_of(Y).shape]}: a "
            "rank's rows of B give a summand of all outputs"
        )
    if str(Y.device) != devices[rank]:
        raise Wrong(f"{where}: expected the output on {devices[rank]}, got it on {Y.device}")
    if _equal(Y, expected):
        return
    summands = [h @ b for h, b in zip(hidden.chunk(n, 1), B.chunk(n), strict=True)]
    if any(_equal(Y, summand) for summand in summands):
        raise Wrong(
            f"{where}: got {few(Y)}, which is one rank's summand; expected {few(expected)}, the "
            "sum over all ranks"
        )
    if _equal(Y, n * expected):
        raise Wrong(
            f"{where}: got {few(Y)}, {n} times the output: every rank has computed the whole, and "
            f"then the wholes were added. Expected {few(expected)}"
        )
    raise Wrong(
        f"{where}: expected {few(expected)}, got {few(Y)}. Part i of A's columns meets part i of "
        "B's rows, with GELU between them, and the summands are added at the end"
    )


def _check_shares(flops: list[int], samples: int, width: int) -> None:
    n, products = len(flops), 2 * 2 * samples * width * 4 * width
    share = max(flops) / products
    if share > ROOM / n:
        raise Wrong(
            f"right numbers, but of {n} ranks one computes {share:.0%} of what one GPU would: take "
            f"a part of A and of B first. Expected {1 / n:.0%}"
        )


def _check_exchanges(names: list[str]) -> None:
    if names != ["all_reduce"]:
        raise Wrong(
            f"right numbers, but {len(names)} exchanges ({', '.join(names) or 'none'}); expected "
            "one all_reduce: what a rank's columns give stays where it is, because its rows need "
            "just that"
        )
