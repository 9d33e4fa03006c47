"""Nested tensors on virtual GPUs: those of layout jagged are torch's own, others are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nested, nn

PARTS = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)]
JAGGED = {"layout": torch.jagged}


def twice(program, device):
    """What the program gives on the CPU and on a virtual GPU, both on the CPU."""
    return program(torch.device("cpu")), [t.cpu() for t in program(device)]


@pytest.mark.parametrize(
    "make",
    [
        lambda device: nested.nested_tensor(PARTS, device=device, **JAGGED),
        lambda device: nested.nested_tensor([p.to(device) for p in PARTS], **JAGGED),
        lambda device: nested.as_nested_tensor([p.to(device) for p in PARTS], **JAGGED),
        lambda device: nested.nested_tensor(PARTS, **JAGGED).to(device),
        lambda device: nested.nested_tensor_from_jagged(
            torch.cat(PARTS).to(device), torch.tensor([0, 2, 6]).to(device)
        ),
    ],
)
def test_jagged_ones_compute(gpus, make):
    def program(device):
        x = make(device) * 2
        assert x.device == device
        return [*x.unbind(), x.sum(1), nested.to_padded_tensor(x, -1.0), x.sin().values()]

    expected, found = twice(program, gpus[1])
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one)


def test_jagged_ones_have_gradients(gpus):
    def program(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.LayerNorm(2)).to(device)
        x = nested.nested_tensor(PARTS, device=device, requires_grad=True, **JAGGED)
        (net(x).values() ** 3).sum().backward()
        return [x.grad.values(), *(p.grad for p in net.parameters())]

    expected, found = twice(program, gpus[0])
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda device: nested.nested_tensor(PARTS, device=device) * 2,  # making it is torch's own
        lambda device: nested.nested_tensor([p.to(device) for p in PARTS]),
        lambda device: nested.as_nested_tensor([p.to(device) for p in PARTS]),
        lambda device: nested.nested_tensor(PARTS).to(device),
    ],
)
def test_strided_ones_are_refused_with_the_remedy(gpus, make):
    with pytest.raises(NotImplementedError, match=r"layout=torch\.jagged, or pad its parts"):
        make(gpus[0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_transformer_that_would_nest_its_padded_input_works(gpus):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False] * 3])
    with torch.no_grad():
        expected = net(x, src_key_padding_mask=padding)
        found = net.to(gpus[0])(x.to(gpus[0]), src_key_padding_mask=padding.to(gpus[0])).cpu()
    torch.testing.assert_close(found[~padding], expected[~padding])
