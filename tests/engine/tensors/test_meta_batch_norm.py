"""Batch normalisation on `meta`, against what torch's own decomposition makes of it."""

import pytest
import torch

from d2lpar.vgpu.torch_backend.shapes import meta_batch_norm
from d2lpar.vgpu.torch_backend.tensors.tensor import layout_of

FORWARD = torch.ops.aten.native_batch_norm.default
BACKWARD = torch.ops.aten.native_batch_norm_backward.default
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FORMATS = (torch.contiguous_format, torch.channels_last)


def images(dtype, memory_format, channels=3):
    made = torch.empty(2, channels, 4, 5, dtype=dtype, device="meta")
    return made.contiguous(memory_format=memory_format)


def layouts(results):
    return [None if t is None else layout_of(t) for t in results]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_are_laid_out_as_torch_makes_them(dtype, memory_format, training):
    x = images(dtype, memory_format)
    for of_weights in {dtype, torch.float32 if dtype != torch.float64 else dtype}:
        weight = torch.empty(3, dtype=of_weights, device="meta")
        rest = (weight, weight, weight, training, 0.1, 1e-5)
        theirs = FORWARD(x, weight, *rest)
        assert layouts(meta_batch_norm.forward(x, weight, *rest)) == layouts(theirs)
        rest = (weight, weight, *theirs[1:], training, 1e-5, [True] * 3)
        expected = BACKWARD(x, x, weight, *rest)
        assert layouts(meta_batch_norm.backward(x, x, weight, *rest)) == layouts(expected)


@pytest.mark.parametrize("wanted", [[True, False, False], [False, True, True]])
def test_what_is_rare_is_left_to_torch(wanted):
    x = images(torch.float32, torch.contiguous_format, channels=6)[:, ::2]
    weight = torch.empty(3, device="meta")
    rest = (weight, weight, weight, True, 0.1, 1e-5)
    theirs = FORWARD(x, weight, *rest)
    assert layouts(meta_batch_norm.forward(x, weight, *rest)) == layouts(theirs)
    rest = (weight, weight, *theirs[1:], True, 1e-5, wanted)
    expected = BACKWARD(x, x, weight, *rest)
    assert layouts(meta_batch_norm.backward(x, x, weight, *rest)) == layouts(expected)
