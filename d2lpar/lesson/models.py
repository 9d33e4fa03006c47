"""Networks that more than one lesson trains."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation, beside a short cut (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        straight = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if straight else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, X: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        Y = F.relu(self.bn1(self.conv1(X)))
        return F.relu(self.bn2(self.conv2(Y)) + self.shortcut(X))


def resnet18(classes: int = 10, *, width: int = 64, channels: int = 1) -> nn.Sequential:
    """ResNet-18 for small images: 3 x 3 first convolution, stride 1, no max-pooling.

    With `width` 64 it has the layers of `d2l.resnet18`; with less, fewer channels in all of them.
    Input [N, channels, H, W], output [N, classes].
    """
    stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    stages = [
        nn.Sequential(
            Residual(max(width, outputs // 2), outputs, stride=1 if outputs == width else 2),
            Residual(outputs, outputs),
        )
        for outputs in (width, 2 * width, 4 * width, 8 * width)
    ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))
    return nn.Sequential(stem, *stages, head)


def lenet(classes: int = 10) -> nn.Sequential:
    """Lesson 04's LeNet, out of modules: input [N, 1, 28, 28], output [N, classes]."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, classes),
    )  # fmt: skip
