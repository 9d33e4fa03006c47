"""Wrong answers to the exercises of lesson 08, and what they are told."""

import pytest
import torch
import torch.distributed as dist
from test_checks import solution
from torch import nn
from torch.nn import functional as F

from d2lpar import checks


def convolve(conv, x, w, device, **options):
    """As the layer does, with a slice of the input and one of the filters."""
    options = {"stride": conv.stride, "padding": conv.padding} | options
    return F.conv2d(x.to(device), w.to(device), **options)


def summed(conv, xs, ws, devices, **options):
    """The sum of what the devices make of their slices, without bias."""
    summands = (convolve(conv, x, w, d, **options) for x, w, d in zip(xs, ws, devices, strict=True))
    return sum(summand.to(devices[0]) for summand in summands)


def right(conv, X, devices, **changed):
    """The right answer but for what is changed: xs, ws, places, bias, stride."""
    n = len(devices)
    places, bias = changed.pop("places", devices), changed.pop("bias", conv.bias.view(-1, 1, 1))
    xs = changed.pop("xs", X.tensor_split(n, 1))
    ws = changed.pop("ws", conv.weight.tensor_split(n, 1))
    return summed(conv, xs, ws, places, **changed) + bias


def bias_everywhere(conv, X, devices):
    """Plausible: each device with what conv has."""
    return sum(
        convolve(conv, x, w, d, bias=conv.bias.to(d)).to(X.device)
        for x, w, d in zip(
            X.tensor_split(len(devices), 1),
            conv.weight.tensor_split(len(devices), 1),
            devices,
            strict=True,
        )
    )


def without_bias(conv, X, devices):
    return right(conv, X, devices, bias=0)


def by_output_channels(conv, X, devices):
    """Plausible: as in the lesson; right, but not what is asked for."""
    parts = (p.tensor_split(len(devices)) for p in (conv.weight, conv.bias))
    outputs = [
        convolve(conv, X, w, d, bias=b.to(d)).to(X.device)
        for w, b, d in zip(*parts, devices, strict=True)
    ]
    return torch.cat(outputs, 1)


def by_images(conv, X, devices):
    """Plausible: data parallelism."""
    outputs = [
        convolve(conv, x, conv.weight, d, bias=conv.bias.to(d)).to(X.device)
        for x, d in zip(X.tensor_split(len(devices)), devices, strict=True)
    ]
    return torch.cat(outputs)


def new_layers(conv, X, devices):
    """Plausible: parts as the lesson makes them, which is right where these are trained."""
    parts = [nn.Parameter(w) for w in conv.weight.detach().tensor_split(len(devices), 1)]
    return right(conv, X, devices, ws=parts)


def without_gradients(conv, X, devices):
    with torch.no_grad():
        return right(conv, X, devices)


def gradient_of_x_is_cut(conv, X, devices):
    return right(conv, X.detach(), devices)


def gradient_of_the_sum_is_scaled(conv, X, devices):
    """Right outputs; only the bias gets its whole gradient."""
    total = right(conv, X, devices, bias=0)
    return (total + total.detach()) / 2 + conv.bias.view(-1, 1, 1)


def on_the_first(conv, X, devices):
    return conv(X)


def pieces_on_the_first(conv, X, devices):
    """Plausible: right pieces, all in one place."""
    return right(conv, X, devices, places=[devices[0]] * len(devices))


def only_whole_shares(conv, X, devices):
    """Plausible: right if the channels can be divided by the devices."""
    each = conv.in_channels // len(devices)
    xs, ws = (t[:, : each * len(devices)].split(each, 1) for t in (X, conv.weight))
    return right(conv, X, devices, xs=xs, ws=ws)


def rest_to_the_last(conv, X, devices):
    """Right sums, but the last device has all but one channel of each other."""
    sizes = [1] * (len(devices) - 1) + [conv.in_channels - len(devices) + 1]
    return right(conv, X, devices, xs=X.split(sizes, 1), ws=conv.weight.split(sizes, 1))


def slices_after_copying(conv, X, devices):
    """Plausible: right, but everything is everywhere."""
    xs, ws = (
        [t.to(d).tensor_split(len(devices), 1)[i] for i, d in enumerate(devices)]
        for t in (X, conv.weight)
    )
    return right(conv, X, devices, xs=xs, ws=ws)


def joined(conv, X, devices):
    """Plausible: gathered, as output channels would be."""
    slices = (t.tensor_split(len(devices), 1) for t in (X, conv.weight))
    summands = [convolve(conv, *each).to(X.device) for each in zip(*slices, devices, strict=True)]
    return torch.cat(summands, 1)


def filters_of_others(conv, X, devices):
    return right(conv, X, devices, ws=conv.weight.flip(1).tensor_split(len(devices), 1))


def on_the_last(conv, X, devices):
    return right(conv, X, devices).to(devices[-1])


def without_stride(conv, X, devices):
    """Plausible: right for the layer of the lesson."""
    return right(conv, X, devices, stride=1)


def part(tensor, dim):
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def total(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def own_summand(X, A, B):
    """Plausible: the sum is forgotten."""
    return F.gelu(X @ part(A, 1)) @ part(B, 0)


def whole_block(X, A, B):
    return F.gelu(X @ A) @ B


def sum_of_wholes(X, A, B):
    return total(whole_block(X, A, B))


def summed_between(X, A, B):
    """Plausible: by rows, twice; right numbers."""
    hidden = F.gelu(total(part(X, 1) @ part(A, 0)))
    return total(part(hidden, 1) @ part(B, 0))


def gelu_of_the_sum(X, A, B):
    """Plausible: GELU moved behind the sum, as if it were linear."""
    return F.gelu(total(X @ part(A, 1) @ part(B, 0)))


def gelu_of_summands(X, A, B):
    """Plausible: the first layer by rows, without a sum."""
    return total(part(F.gelu(part(X, 1) @ part(A, 0)), 1) @ part(B, 0))


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("by_input_channels", bias_everywhere, "the bias is in the sum 2 times, expected once"),
        ("by_input_channels", without_bias, "the bias is in the sum 0 times"),
        ("by_input_channels", by_output_channels, "computes 4 of 8 output channels"),
        ("by_input_channels", by_images, "a device gets 2 of 4 images"),
        ("by_input_channels", new_layers, "conv.weight.grad is None"),
        ("by_input_channels", without_gradients, "no gradient flows back"),
        ("by_input_channels", gradient_of_x_is_cut, "X.grad is None"),
        ("by_input_channels", gradient_of_the_sum_is_scaled, "in X.grad expected"),
        ("by_input_channels", on_the_first, "vgpu:0 computes 100% of the FLOP; expected 50%"),
        ("by_input_channels", pieces_on_the_first, "vgpu:0 computes 100% of the FLOP"),
        ("by_input_channels", only_whole_shares, "only 6 input channels were convolved"),
        ("by_input_channels", rest_to_the_last, "vgpu:1 computes 83% of the FLOP"),
        ("by_input_channels", slices_after_copying, "Slice before you copy"),
        ("by_input_channels", joined, "expected the shape [4, 8, 10, 12], got [4, 16, 10, 12]"),
        ("by_input_channels", filters_of_others, "Channel c of X meets conv.weight[:, c]"),
        ("by_input_channels", on_the_last, "on vgpu:0, got it on vgpu:1"),
        ("by_input_channels", without_stride, "with the layer's stride and padding"),
        ("by_input_channels", lambda *_: None, "expected a tensor, got None"),
        ("columns_then_rows", own_summand, "which is one rank's summand"),
        ("columns_then_rows", whole_block, "computes 100% of what one GPU would"),
        ("columns_then_rows", sum_of_wholes, "2 times the output"),
        ("columns_then_rows", summed_between, "2 exchanges (all_reduce, all_reduce)"),
        ("columns_then_rows", gelu_of_the_sum, "with GELU between them"),
        ("columns_then_rows", gelu_of_summands, "with GELU between them"),
        ("columns_then_rows", lambda X, A, B: X @ A, "expected the shape [3, 4], got [3, 16]"),
        ("columns_then_rows", lambda *_: None, "expected a tensor, got None"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def chunked(conv, X, devices):
    """chunk() cuts 7 channels into 3, 3 and 1: the busiest has no more than it must."""
    xs, ws = (t.chunk(len(devices), 1) for t in (X, conv.weight))
    return right(conv, X, devices, xs=xs, ws=ws)


def chained(conv, X, devices):
    """The sum goes from device to device, the bias with it."""
    slices = (t.tensor_split(len(devices), 1) for t in (X, conv.weight))
    total = conv.bias.view(-1, 1, 1)
    for x, w, d in list(zip(*slices, devices, strict=True))[::-1]:
        total = total.to(d) + convolve(conv, x, w, d)
    return total


def by_products(conv, X, devices):
    """Unfolded, and without any convolution."""
    summands = []
    slices = (t.tensor_split(len(devices), 1) for t in (X, conv.weight))
    for x, w, d in zip(*slices, devices, strict=True):
        columns = F.unfold(x.to(d), 3, padding=conv.padding, stride=conv.stride)
        summands.append((w.to(d).flatten(1) @ columns).to(X.device))
    height = (X.shape[2] - 1) // conv.stride[0] + 1
    return sum(summands).unflatten(2, (height, -1)) + conv.bias.view(-1, 1, 1)


@pytest.mark.parametrize("answer", [chunked, chained, by_products])
def test_other_ways_to_split_the_input_channels_are_right(answer):
    verdict = checks.by_input_channels(answer)
    assert verdict, verdict


def test_praise_tells_what_either_split_copies():
    """8 input and 2 output channels on 4 devices: counted by hand, 4 bytes a number."""
    pixels = 4 * 10 * 12
    X, Y, filters = 8 * pixels * 4, 2 * pixels * 4, 2 * 8 * 3 * 3 * 4
    by_inputs = 3 * (X + filters) // 4 + 3 * Y
    by_outputs = 3 * X + 3 * (Y + filters) // 4
    text = checks.by_input_channels(solution("channel_parallelism", "by_input_channels")).text
    assert f"{by_inputs:,} bytes" in text
    assert f"{by_outputs:,}" in text


def test_a_wrong_block_is_drawn_too():
    picture = checks.columns_then_rows(own_summand).picture
    assert {kind for _, _, kind, *_ in picture["spans"]} == {"compute"}
    picture = checks.columns_then_rows(summed_between).picture
    assert sum(row[0] == "vgpu:0" and row[2] == "collective" for row in picture["spans"]) == 2
