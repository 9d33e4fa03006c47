"""Batch normalisation in half precision beside statistics in float32, as FSDP leaves them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

HALF = torch.bfloat16


def learned(norm, x):
    """The norm with weights in half precision, what it makes of x, and x."""
    for parameter in norm.parameters():
        parameter.data = parameter.data.to(HALF)
    x = x.to(norm.weight.device, HALF).requires_grad_()
    return norm, norm(x), x


def in_full_precision(norm, x):
    x = x.to(HALF).float().requires_grad_()
    return norm, norm(x), x


def test_it_is_what_full_precision_makes_rounded(gpus):
    data = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
    norm, y, x = learned(nn.BatchNorm1d(5).to(gpus[0]), data)
    expected_norm, expected_y, expected_x = in_full_precision(nn.BatchNorm1d(5), data)
    assert y.dtype is HALF
    assert norm.running_mean.dtype is torch.float32
    assert_close(norm.running_mean.cpu(), expected_norm.running_mean)
    assert_close(norm.running_var.cpu(), expected_norm.running_var)
    assert_close(y.cpu().float(), expected_y, rtol=0.01, atol=0.01)
    y.pow(3).sum().backward()
    expected_y.pow(3).sum().backward()
    assert x.grad.dtype is HALF
    assert norm.weight.grad.dtype is HALF
    assert_close(x.grad.cpu().float(), expected_x.grad, rtol=0.05, atol=0.1)


def test_cuda_has_no_gradient_of_images_with_channels_first(gpus):
    images = torch.randn(2, 5, 4, 4)
    _, y, _ = learned(nn.BatchNorm2d(5).to(gpus[0]), images)
    with pytest.raises(RuntimeError, match="running_mean to have type BFloat16 but got Float: let"):
        y.sum().backward()
    _, y, x = learned(nn.BatchNorm2d(5).to(gpus[0]), images.to(memory_format=torch.channels_last))
    y.sum().backward()
    assert x.grad.dtype is HALF
