"""AmoebaNet-D (Real et al. 2018) in the form in which GPipe and torchgpipe measured pipelines.

A sequence of cells that hand on a pair: what a cell made, and what it was given. A cell adds pairs
of operations on earlier states; which, the two tables say (Lee et al., torchgpipe, 2020, whose
normal cell follows TensorFlow's code rather than the paper).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

States = tuple[torch.Tensor, torch.Tensor]
Size = int | tuple[int, int]  # one number for both sides, or height and width

# Pairs of lines are added: the number of the state that comes in, and the operation.
NORMAL = (
    *((1, "conv 1x1"), (1, "mean 3x3")),
    *((1, "as it is"), (0, "conv 1x7 7x1")),
    *((0, "conv 1x1"), (0, "conv 1x7 7x1")),
    *((2, "mean 3x3"), (2, "as it is")),
    *((1, "mean 3x3"), (5, "conv 1x1")),
)
NORMAL_RESULT = (0, 3, 4, 6)
REDUCTION = (
    *((0, "max 2x2"), (0, "mean 3x3")),
    *((2, "as it is"), (1, "conv 3x3")),
    *((2, "conv 1x7 7x1"), (2, "mean 3x3")),
    *((3, "as it is"), (1, "max 2x2")),
    *((2, "mean 3x3"), (3, "conv 1x1")),
)
REDUCTION_RESULT = (4, 5, 6)


def amoebanet_d(*, layers: int, filters: int) -> nn.Sequential:
    """Three stems, `layers` normal cells with two reductions among them, and a classifier.

    It tells 1000 classes apart.
    """
    made: list[nn.Module] = [_Stem(filters // 4)]
    width, before, last = filters // 4, filters // 4, filters // 4
    was_reduction = False
    third = ["normal"] * (layers // 3)
    for kind in ["reduction"] * 2 + third + ["reduction"] + third + ["reduction"] + third:
        reduces = kind == "reduction"
        width *= 2 if reduces else 1
        cell = _Cell(before, last, width, reduces, was_reduction)
        before, last, was_reduction = last, width * len(cell.result), reduces
        made.append(cell)
    return nn.Sequential(*made, _Classifier(last, 1000))


def _conv(
    inputs: int, outputs: int, size: Size = 1, stride: Size = 1, padding: Size = 0
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)
    return [nn.ReLU(), conv, nn.BatchNorm2d(outputs)]


def _operation(name: str, width: int, stride: int) -> nn.Module:
    quarter = width // 4
    if name == "as it is":
        return nn.Identity() if stride == 1 else _Halve(width, width)
    if name == "mean 3x3":
        return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
    if name == "max 2x2":
        return nn.MaxPool2d(2, stride)
    if name == "conv 1x1":
        return nn.Sequential(*_conv(width, width, 1, stride))
    if name == "conv 3x3":
        middle = _conv(quarter, quarter, 3, stride, 1)
    else:
        middle = _conv(quarter, quarter, (1, 7), (1, stride), (0, 3))
        middle += _conv(quarter, quarter, (7, 1), (stride, 1), (3, 0))
    return nn.Sequential(*_conv(width, quarter), *middle, *_conv(quarter, width))


class _Halve(nn.Module):
    """Half the height and width: one half of the channels from even pixels, one from odd ones."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even, self.odd = (
            nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False) for _ in range(2)
        )
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(x)
        shifted = F.pad(x[:, :, 1:, 1:], (0, 1, 0, 1))
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))


class _Stem(nn.Sequential):
    def __init__(self, channels: int) -> None:
        super().__init__(*_conv(3, channels, 3, 2, 1))


class _Cell(nn.Module):
    takes_state = True

    def __init__(self, before: int, last: int, width: int, reduces: bool, halved: bool) -> None:
        super().__init__()
        self.of_last = nn.Sequential(*_conv(last, width))
        self.of_before: nn.Module
        if halved:
            self.of_before = _Halve(before, width)
        else:
            same = before == width
            self.of_before = nn.Identity() if same else nn.Sequential(*_conv(before, width))
        table = REDUCTION if reduces else NORMAL
        self.result = REDUCTION_RESULT if reduces else NORMAL_RESULT
        self.inputs = [number for number, _ in table]
        self.operations = nn.ModuleList(
            _operation(name, width, 2 if reduces and number < 2 else 1) for number, name in table
        )

    def forward(self, given: torch.Tensor | States) -> States:
        last, before = given if isinstance(given, tuple) else (given, given)
        states = [self.of_last(last), self.of_before(before)]
        for i in range(0, len(self.inputs), 2):
            a, b = (self.operations[j](states[self.inputs[j]]) for j in (i, i + 1))
            states.append(a + b)
        return torch.cat([states[i] for i in self.result], 1), last


class _Classifier(nn.Module):
    takes_state = True

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, given: States) -> torch.Tensor:
        return self.linear(given[0].mean((2, 3)))
