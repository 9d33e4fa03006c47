"""Products in float16 are added up in float32 and rounded once, as by a GPU's tensor cores."""

import pytest
import torch
from torch.nn import functional as F


def numbers(*shape):
    torch.manual_seed(len(shape) + shape[-1])
    return torch.randn(shape).half()


def weight_gradient(gradient, image, weight):
    sizes = [0], [1, 1], [0, 0], [1, 1]
    found = torch.ops.aten.convolution_backward(
        gradient, image, weight, *sizes, False, [0, 0], 1, [False, True, False]
    )
    assert found[0] is None
    return found[1]


CALLS = {
    "mm": (torch.mm, numbers(40, 500), numbers(500, 30)),
    "addmm": (torch.addmm, numbers(30), numbers(40, 500), numbers(500, 30)),
    "bmm": (torch.bmm, numbers(2, 20, 500), numbers(2, 500, 30)),
    "baddbmm": (torch.baddbmm, numbers(30), numbers(2, 20, 500), numbers(2, 500, 30)),
    "convolution": (F.conv2d, numbers(2, 32, 9, 9), numbers(8, 32, 3, 3), numbers(8)),
    "weight's gradient": (
        weight_gradient, numbers(2, 8, 7, 7), numbers(2, 32, 9, 9), numbers(8, 32, 3, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_they_are_rounded_once(gpus, name):
    function, *arguments = CALLS[name]
    exact = function(*(t.double() for t in arguments)).half()
    found = function(*(t.to(gpus[0]) for t in arguments))
    assert found.dtype == torch.float16
    assert (found.cpu() != exact).float().mean() < 0.005  # torch's own for the CPU: up to 0.3
    torch.testing.assert_close(found.cpu(), exact, rtol=2**-10, atol=2**-24)


def test_other_types_beside_it_are_refused_as_ever(gpus):
    half = numbers(3, 3).to(gpus[0])
    with pytest.raises(RuntimeError, match="same dtype"):
        half @ half.float()


def test_larger_sums_than_float16_has_are_infinite(gpus):
    large = torch.full((2, 2), 200.0, device=gpus[0], dtype=torch.float16)
    assert (large @ large).isinf().all()
    assert (large @ -large).cpu().tolist() == [[-float("inf")] * 2] * 2
