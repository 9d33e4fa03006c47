"""Products of half precision: in fp32 where the processor has no instructions, rounded once."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import d2lpar as par
from d2lpar.vgpu.torch_backend.private import torch_devices, torch_operators
from d2lpar.vgpu.torch_backend.values import half_products

aten = torch.ops.aten


@pytest.fixture(params=[torch.float16, torch.bfloat16])
def dtype(request, monkeypatch):
    """A half precision that the processor has no instructions for."""
    monkeypatch.setattr(torch_devices, "has_instructions_for", lambda dtype: False)
    half_products.is_slow.cache_clear()
    yield request.param
    half_products.is_slow.cache_clear()


def rounded_once(exact, dtype):
    """Next to the exact results: half a unit in the last place, and what fp32 leaves to a tie."""
    return {"rtol": 0.51 * torch.finfo(dtype).eps, "atol": 1e-4 * float(exact.abs().max())}


def assert_rounded_once(found, exact, dtype):
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, **rounded_once(exact, dtype))


def draw(*shape, dtype):
    return torch.randn(*shape).to(dtype)


def test_products_are_rounded_once(dtype):
    torch.manual_seed(0)
    a, b, c = draw(7, 300, dtype=dtype), draw(300, 5, dtype=dtype), draw(5, dtype=dtype)
    found = half_products.KERNELS
    exact = a.double() @ b.double()
    assert_rounded_once(found[aten.mm.default](a, b), exact, dtype)
    assert_rounded_once(found[aten.addmm.default](c, a, b, alpha=2), c + 2 * exact, dtype)
    assert_rounded_once(found[aten.bmm.default](a[None], b[None]), exact[None], dtype)
    kernel = found[torch_operators.product_with_activation.default]
    assert_rounded_once(kernel(c, a, b), (c + exact).relu(), dtype)


def test_convolutions_and_their_gradients_are_rounded_once(dtype):
    torch.manual_seed(0)
    x = draw(2, 3, 9, 9, dtype=dtype).to(memory_format=torch.channels_last)
    w, b = draw(4, 3, 3, 3, dtype=dtype), draw(4, dtype=dtype)
    exact = [t.double().requires_grad_() for t in (x, w, b)]
    y = F.conv2d(*exact, padding=1)
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    found = half_products.KERNELS[aten.convolution.default](x, w, b, *settings)
    assert_rounded_once(found, y.detach(), dtype)
    assert found.is_contiguous(memory_format=torch.channels_last)
    g = draw(*y.shape, dtype=dtype)
    y.backward(g.double())
    backward = half_products.KERNELS[aten.convolution_backward.default]
    found = backward(g, x, w, [4], *settings, [True, True, True])
    for gradient, leaf in zip(found, exact, strict=True):
        assert_rounded_once(gradient, leaf.grad, dtype)
    assert backward(g, x, w, [4], *settings, [False, True, False])[::2] == (None, None)


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float16), (torch.float16, torch.float32)])
def test_operands_of_two_types_are_refused_as_ever(kinds):
    a, b = (torch.ones(2, 2, dtype=kind) for kind in kinds)
    with pytest.raises(RuntimeError, match="same dtype"):
        half_products.KERNELS[aten.mm.default](a, b)


def test_only_what_is_slow_is_computed_wide(monkeypatch):
    seen = []
    kernel = half_products.computed_wide(lambda a: seen.append(a.dtype) or a)
    half_products.is_slow.cache_clear()
    monkeypatch.setattr(torch_devices, "has_instructions_for", lambda dtype: dtype == torch.half)
    for kind in (torch.half, torch.bfloat16, torch.float32, torch.int64):
        kernel(torch.ones(1, dtype=kind))
    half_products.is_slow.cache_clear()
    assert seen == [torch.half, torch.float32, torch.float32, torch.int64]


def test_virtual_gpus_compute_so(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 36, 2)).to(dtype)
    x = draw(2, 1, 8, 8, dtype=dtype)
    with par.emulate_cuda(1, verbose=False):
        found = net.cuda()(x.cuda()).cpu()
    exact = F.conv2d(x.double(), net[0].weight.cpu().double(), net[0].bias.cpu().double())
    middle = exact.to(dtype).flatten(1).double()
    weight, bias = (p.detach().cpu().double() for p in net[2].parameters())
    torch.testing.assert_close(found.double(), middle @ weight.T + bias, rtol=1e-2, atol=1e-2)
