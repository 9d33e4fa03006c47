"""Without values the same calls are refused as with them, in the same words."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import d2lpar as par
from d2lpar.vgpu.torch_backend.values import refusals

HALF, DOUBLE = torch.float16, torch.float64


def make(place):
    """Zeros and whole numbers on a device."""

    def zeros(*shape, dtype=torch.float32):
        return torch.zeros(*shape, dtype=dtype, device=place)

    def whole(*shape, dtype=torch.int64):
        return torch.zeros(*shape, dtype=dtype, device=place)

    return zeros, whole


MISTAKES = {
    "product of two types": lambda x, i: x(3, 4) @ x(4, 5, dtype=DOUBLE),
    "large product of two types": lambda x, i: x(300, 400) @ x(400, 500, dtype=HALF),
    "product with indices": lambda x, i: x(3, 4) @ i(4, 5),
    "half weights": lambda x, i: F.linear(x(3, 4), x(5, 4, dtype=HALF)),
    "double bias": lambda x, i: F.linear(x(64, 128), x(256, 128), x(256, dtype=DOUBLE)),
    "bias of a convolution": lambda x, i: F.conv2d(x(32, 3, 24, 24), x(64, 3, 3, 3), x(65)),
    "groups": lambda x, i: F.conv2d(x(2, 4, 8, 8), x(5, 2, 3, 3), groups=2),
    "channels back": lambda x, i: F.conv_transpose2d(x(16, 30, 20, 20), x(40, 30, 3, 3)),
    "padding": lambda x, i: F.conv2d(x(2, 3, 8, 8), x(4, 3, 3, 3), padding=-1),
    "double weights of images": lambda x, i: F.conv2d(x(2, 3, 8, 8), x(4, 3, 3, 3, dtype=DOUBLE)),
    "half layer norm": lambda x, i: F.layer_norm(x(2, 768), (768,), x(768, dtype=HALF)),
    "types of labels": lambda x, i: F.cross_entropy(x(3, 4), i(3, dtype=torch.int32)),
    "weights of classes": lambda x, i: F.cross_entropy(x(3, 4), i(3), x(4, dtype=DOUBLE)),
    "labels of a binary loss": lambda x, i: F.binary_cross_entropy(x(3), i(3)),
    "copy": lambda x, i: x(3, 4).copy_(x(5)),
    "copy of more dimensions": lambda x, i: x(3, 4).copy_(x(2, 3, 4)),
    "copy from the host": lambda x, i: x(3, 4).copy_(torch.zeros(5)),
    "copy to the host": lambda x, i: torch.zeros(3, 4).copy_(x(5)),
    "whole numbers in place": lambda x, i: i(3).mul_(1.5),
    "mask": lambda x, i: x(3).masked_fill_(i(3), 1.0),
    "table of indices": lambda x, i: x(3, 4).index_select(0, i(2, 2)),
    "types of indices": lambda x, i: x(3, 4).index_select(0, x(2)),
    "rows that are added": lambda x, i: x(30, 40).index_add_(0, i(20), x(20, 50)),
    "rows that are written": lambda x, i: x(3, 4).index_put_((i(2),), x(3, 4)),
    "nothing to reduce": lambda x, i: x(0, 3).max(0),
    "softmax of whole numbers": lambda x, i: i(3, 4).softmax(1),
    "samples": lambda x, i: torch.multinomial(x(3), 5),
    "bounds": lambda x, i: x(3).uniform_(2, 1),
    "bits of numbers": lambda x, i: x(3) & x(3),
    "module of another type": lambda x, i: nn.Linear(4, 5, device=x(1).device)(x(3, 4, dtype=HALF)),
}  # fmt: skip


def refusal(call, place):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of what kind the CPU says
        call(*make(place))
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("call", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_met_in_the_words_of_the_cpu(gpus, call):
    with par.shape_only():
        without_values = refusal(call, gpus[0])
    assert without_values == refusal(call, "cpu")


VALUES_DECIDE = {
    "division by zero": lambda x, i: i(3) // i(3),
    "singular matrix": lambda x, i: torch.linalg.inv(x(20, 20)),
    "no probability": lambda x, i: torch.multinomial(x(30), 5),
    "more than one mask value": lambda x, i: x(4).masked_scatter_(x(4) > 0, x(2)),
    "as many as a mask selects": lambda x, i: x(9).index_put_((x(9) > 0,), x(5)),
    "repeats": lambda x, i: x(4).repeat_interleave(i(4), output_size=9),
}


@pytest.mark.parametrize("call", VALUES_DECIDE.values(), ids=VALUES_DECIDE)
def test_what_values_decide_passes(gpus, call):
    with par.shape_only():
        call(*make(gpus[0]))


def test_random_numbers_and_threads_of_the_host_stay(gpus):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with par.shape_only():
        x, _ = make(gpus[0])
        F.dropout(x(301))
        x(302).normal_()
        with pytest.raises(RuntimeError):
            x(303).uniform_(2, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_a_call_is_asked_about_once_and_in_small(gpus, monkeypatch):
    """Nothing is computed that takes long, whatever the sizes."""
    asked = []
    error_of = refusals._error_of

    def noted(func, kernel, args, kwargs):
        asked.append([tuple(tensor.shape) for tensor in args])
        return error_of(func, kernel, args, kwargs)

    monkeypatch.setattr(refusals, "_error_of", noted)
    with par.shape_only():
        x, _ = make(gpus[0])
        a, b = x(20_000, 30_000), x(30_000, 7)
        asked.clear()
        for _ in range(3):
            a @ b
    assert asked == [[(9, 10), (10, 7)]]


def test_a_number_of_the_hosts_fills_as_on_cuda():
    with par.simulate("1x-a100-nvswitch") as (gpu,):
        x, number = torch.ones(3, 4, device=gpu), torch.tensor(-1.0)
        assert x.masked_fill(x > 0, number).device == gpu
        assert x.masked_fill_(x > 0, number) is x
