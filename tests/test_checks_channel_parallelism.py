"""Wrong answers to the exercises of lesson 08, and what they are told."""

import pytest
import torch
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


def held(shared, *, each=16):
    """Bytes if `shared[stage - 1]` of the `each` of a parameter are divided."""

    def answer(parameters, ranks, stage):
        divided = (0, *shared)[stage]
        return parameters * (each - divided + divided / ranks)

    return answer


def sixteen_divided(parameters, ranks, stage):
    """Plausible: half remembered, all is divided from stage 2 on."""
    of_stage = solution("channel_parallelism", "zero_bytes")
    return parameters * 16 / ranks if stage == 2 else of_stage(parameters, ranks, stage)


def without_the_copy(parameters, ranks, stage):
    """Plausible: Adam has two moments, so K = 8."""
    return held((8, 10, 12), each=12)(parameters, ranks, stage)


def always_divided(parameters, ranks, stage):
    return 16 * parameters / ranks


def in_gigabytes(parameters, ranks, stage):
    return solution("channel_parallelism", "zero_bytes")(parameters, ranks, stage) / 1e9


def grid(*sizes):
    return torch.arange(torch.Size(sizes).numel()).view(sizes)


def along(mesh, rank):
    """The groups of a rank along the axes of a mesh, in their order."""
    place = (mesh == rank).nonzero()[0].tolist()
    return tuple(
        mesh[tuple(slice(None) if i == axis else place[i] for i in range(3))].tolist()
        for axis in range(3)
    )


def reversed_axes(rank, data, pipeline, channel):
    """Plausible: neighbours in the data axis."""
    return along(grid(channel, pipeline, data), rank)[::-1]


def data_and_pipeline_swapped(rank, data, pipeline, channel):
    """Plausible: Megatron-LM's default order, whose pipeline ranks are the furthest apart."""
    pipelines, replicas, channels = along(grid(pipeline, data, channel), rank)
    return replicas, pipelines, channels


def own_coordinates(rank, *sizes):
    return tuple((grid(*sizes) == rank).nonzero()[0].tolist())


def the_others(rank, *sizes):
    return tuple([r for r in group if r != rank] for group in along(grid(*sizes), rank))


def itself_first(rank, *sizes):
    return tuple([rank, *group] for group in the_others(rank, *sizes))


def planes(rank, *sizes):
    """Plausible: all ranks of the same index along an axis, which is the opposite."""
    mesh = grid(*sizes)
    place = (mesh == rank).nonzero()[0].tolist()
    return tuple(mesh.select(axis, at).flatten().tolist() for axis, at in enumerate(place))


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
        ("zero_bytes", held((2, 4, 16)), "stage 1 divides Adam's 12 bytes"),
        ("zero_bytes", held((2, 14, 16)), "stage 1 divides Adam's 12 bytes"),
        ("zero_bytes", held((12, 12, 16)), "stage 2 divides the gradients as well"),
        ("zero_bytes", held((12, 14, 14)), "stage 3 divides everything"),
        ("zero_bytes", sixteen_divided, "expected 16.64 GB, got 1.875 GB: stage 2"),
        ("zero_bytes", without_the_copy, "expected 120 GB, got 90 GB: without ZeRO"),
        ("zero_bytes", always_divided, "without ZeRO every rank holds all 16 bytes"),
        ("zero_bytes", in_gigabytes, "got 120, which are gigabytes"),
        ("zero_bytes", lambda *_: None, "number of bytes"),
        ("groups_of", reversed_axes, "along data expected [0, 12], got [0, 1]: replicas"),
        ("groups_of", data_and_pipeline_swapped, "along data expected [0, 12], got [0, 4]"),
        ("groups_of", own_coordinates, "three lists of ranks, got (0, 0, 0)"),
        ("groups_of", the_others, "rank 0 itself is in each of its groups"),
        ("groups_of", itself_first, "sorted, so that all members"),
        ("groups_of", planes, "expected [0, 12], got [0, 1, 2"),
        ("groups_of", lambda rank, *sizes: along(grid(*sizes), rank)[:2], "three lists"),
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


def test_the_figures_of_the_paper():
    """Rajbhandari et al. 2020, figure 1: 7.5e9 parameters on 64 ranks."""
    answer = solution("channel_parallelism", "zero_bytes")
    found = [round(answer(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)]
    assert found == [120.0, 31.4, 16.6, 1.9]
    assert "120.0, 31.4, 16.6, 1.9 GB" in checks.zero_bytes(answer).text


@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 5, 2), (3, 1, 1)])
def test_groups_meet_in_their_rank_and_cover_the_mesh(sizes):
    answer = solution("channel_parallelism", "groups_of")
    ranks = range(torch.Size(sizes).numel())
    for axis, size in enumerate(sizes):
        groups = {tuple(answer(rank, *sizes)[axis]) for rank in ranks}
        assert sorted(r for group in groups for r in group) == list(ranks)
        assert {len(group) for group in groups} == {size}
    for rank in ranks:
        assert set.intersection(*map(set, answer(rank, *sizes))) == {rank}


def test_praise_tells_what_either_split_copies():
    """8 input and 2 output channels on 4 devices: counted by hand, 4 bytes a number."""
    pixels = 4 * 10 * 12
    X, Y, filters = 8 * pixels * 4, 2 * pixels * 4, 2 * 8 * 3 * 3 * 4
    by_inputs = 3 * (X + filters) // 4 + 3 * Y
    by_outputs = 3 * X + 3 * (Y + filters) // 4
    text = checks.by_input_channels(solution("channel_parallelism", "by_input_channels")).text
    assert f"{by_inputs:,} bytes" in text
    assert f"{by_outputs:,}" in text
