"""The package's networks against those that they stand for: the textbook's and lesson 04's."""

from collections import Counter

import cells
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from d2lpar import models


@pytest.fixture(scope="module")
def textbook():
    """The textbook's ResNet-18, its lazy layers made."""
    d2l = pytest.importorskip("d2l.torch")
    torch.manual_seed(0)
    net = d2l.resnet18(10, in_channels=1)
    net(torch.rand(2, 1, 28, 28))
    return net


def test_resnet18_has_the_layers_of_the_textbook(textbook):
    ours = models.resnet18()
    assert Counter(p.shape for p in ours.parameters()) == Counter(
        p.shape for p in textbook.parameters()
    )
    layers = (nn.Conv2d, nn.BatchNorm2d, nn.Linear)
    assert _settings(ours, layers) == _settings(textbook, layers)


def test_resnet18_computes_what_the_textbook_does(textbook):
    ours = models.resnet18()
    copy_parameters(textbook, ours)
    torch.manual_seed(1)
    X = torch.randn(4, 1, 28, 28)
    for training in (True, False):
        found, expected = (net.train(training)(X) for net in (ours, textbook))
        assert_close(found, expected)
        assert found.std(0).min() > 1e-3


def copy_parameters(source, target):
    """By the place of each layer: the textbook's blocks list theirs in another order."""
    for theirs, mine in zip(_blocks(source), _blocks(target), strict=True):
        assert len(theirs) == len(mine)
        for a, b in zip(theirs, mine, strict=True):
            b.load_state_dict(a.state_dict())


def _blocks(net):
    """Layers with parameters: the stem's, each residual block's by their part, the last one's."""
    residual = [m for m in net.modules() if hasattr(m, "bn2")]
    inside = {id(part) for block in residual for part in block.modules()}
    around = [m for m in net.modules() if list(m.parameters(False)) and id(m) not in inside]
    return [around] + [
        [b.conv1, b.bn1, b.conv2, b.bn2, *filter(_is_conv, (_shortcut(b),))] for b in residual
    ]


def _shortcut(block):
    return block.conv3 if hasattr(block, "conv3") else block.shortcut


def _is_conv(layer):
    return isinstance(layer, nn.Conv2d)


def _settings(net, kinds):
    """How often each kind of layer is there, by all that its repr tells: strides, padding, eps."""
    return Counter(repr(m) for m in net.modules() if isinstance(m, kinds))


@pytest.mark.parametrize(("width", "classes"), [(4, 10), (16, 3)])
def test_a_narrow_resnet18_has_fewer_channels_in_all_layers(width, classes):
    wide, narrow = (models.resnet18(classes, width=w) for w in (64, width))
    ours, theirs = ([m.weight for m in net.modules() if _is_conv(m)] for net in (narrow, wide))
    for i, (few, many) in enumerate(zip(ours, theirs, strict=True)):
        assert len(few) * 64 == len(many) * width
        assert few.shape[1] * 64 == many.shape[1] * width or (i, few.shape[1]) == (0, 1)
        assert few.shape[2:] == many.shape[2:]
    assert narrow(torch.rand(2, 1, 14, 14)).shape == (2, classes)


def test_lenet_computes_what_multi_gpu_from_scratch_does():
    loss = nn.CrossEntropyLoss(reduction="none")
    lesson = cells.functions("04", torch=torch, F=F, loss=loss)
    torch.manual_seed(0)
    params = [p.double().requires_grad_() for p in lesson.init_params(scale=0.1)]
    X, y = torch.randn(8, 1, 28, 28, dtype=torch.float64), torch.randint(10, (8,))
    net = models.lenet().double()
    with torch.no_grad():
        for mine, theirs in zip(net.parameters(), params, strict=True):
            mine.copy_(_as_module(theirs))
    expected = lesson.lenet(X, params)
    assert expected.std() > 0.01
    assert_close(net(X), expected)
    F.cross_entropy(net(X), y, reduction="sum").backward()
    loss(expected, y).sum().backward()
    for mine, theirs in zip(net.parameters(), params, strict=True):
        assert_close(mine.grad, _as_module(theirs.grad))


def _as_module(tensor):
    """A matrix as `nn.Linear` has it: outputs first."""
    return tensor.T if tensor.dim() == 2 else tensor


def test_lenet_has_as_many_outputs_as_classes():
    assert models.lenet(3)(torch.rand(2, 1, 28, 28)).shape == (2, 3)
