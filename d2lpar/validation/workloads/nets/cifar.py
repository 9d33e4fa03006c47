"""Residual networks for images of 32 x 32, as the scripts have them that train on CIFAR-10.

They follow kuangliu/pytorch-cifar (`resnet18`), hysts/pytorch_image_classification (`preactivated`)
and davidcpage/cifar10-fast (`resnet9`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Norm = Callable[[int], nn.Module]
CLASSES = 10


def resnet18(norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """ResNet-18 with a first convolution of 3 x 3: images [N, 3, 32, 32] to scores [N, 10]."""
    layers: list[nn.Module] = [_convolution(3, 64), norm(64), nn.ReLU()]
    channels = 64
    for outputs in (64, 64, 128, 128, 256, 256, 512, 512):
        layers.append(Residual(channels, outputs, norm))
        channels = outputs
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, CLASSES))


def no_norm(_channels: int) -> nn.Module:
    """In place of a batch norm, nothing."""
    return nn.Identity()


def preactivated(blocks: int, width: int) -> nn.Sequential:
    """Three stages of `blocks` blocks, the first of `width` channels: ResNet-20 with 3 and 16,
    WRN-28-10 with 4 and 160."""
    layers: list[nn.Module] = [_convolution(3, 16)]
    channels = 16
    for outputs in (width, 2 * width, 4 * width):
        for _ in range(blocks):
            stride = 2 if outputs == 2 * channels else 1
            layers.append(Preactivated(channels, outputs, stride))
            channels = outputs
    tail = (nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, *tail, nn.Linear(channels, CLASSES))


def resnet9() -> nn.Sequential:
    """Eight convolutions and a matrix: DAWNBench's network of 2018, with 6.6 million parameters."""

    def unit(inputs: int, outputs: int) -> list[nn.Module]:
        return [_convolution(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU()]

    def pair(channels: int) -> nn.Module:
        return Added(nn.Sequential(*unit(channels, channels), *unit(channels, channels)))

    return nn.Sequential(
        *unit(3, 64),
        *(*unit(64, 128), nn.MaxPool2d(2), pair(128)),
        *(*unit(128, 256), nn.MaxPool2d(2)),
        *(*unit(256, 512), nn.MaxPool2d(2), pair(512)),
        *(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(512, CLASSES, bias=False)),
    )


class Residual(nn.Module):
    """Two convolutions, each normalised, beside a short cut that is normalised, too."""

    def __init__(self, inputs: int, outputs: int, norm: Norm) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1, self.norm1 = _convolution(inputs, outputs, stride), norm(outputs)
        self.conv2, self.norm2 = _convolution(outputs, outputs), norm(outputs)
        self.shortcut = nn.Sequential()
        if stride == 2:
            straight = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(straight, norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y)


class Preactivated(nn.Module):
    """Two convolutions, each of what was normalised before (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _convolution(inputs, outputs, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _convolution(outputs, outputs)
        straight = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.shortcut = nn.Sequential(*([straight] if inputs != outputs else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        y = self.conv1(F.relu(self.norm1(x), inplace=True))
        y = self.conv2(F.relu(self.norm2(y), inplace=True))
        y += self.shortcut(x)
        return y


class Added(nn.Module):
    """What layers make of an input, added to it."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, channels, H, W] to the same."""
        return x + self.layers(x)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
