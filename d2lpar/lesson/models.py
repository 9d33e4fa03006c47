"""Networks that more than one lesson trains."""

from __future__ import annotations

from collections import OrderedDict

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


def resnet18(classes: int = 10, *, width: int = 64) -> nn.Sequential:
    """ResNet-18 for small images: 3 x 3 first convolution, stride 1, no max-pooling.

    With `width` 64 it has the layers of `d2l.resnet18`; with less, fewer channels in all of them.
    Input [N, 1, H, W], output [N, classes].
    """
    stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
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


class Embed(nn.Module):
    """A vector for each word, plus one for its place."""

    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, T] numbers of words to [N, T, width]."""
        return self.words(tokens) + self.places.weight[: tokens.shape[1]]


class Block(nn.Module):
    """Attention to the words before, then a perceptron, each beside a short cut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, X: Tensor) -> Tensor:
        """Each head mixes the values of the words so far; the heads' outputs, side by side."""
        q, k, v = (
            layer(X).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, X: Tensor) -> Tensor:
        """[N, T, width] to the same."""
        X = X + self.out(self.attend(self.norm1(X)))
        return X + self.down(F.gelu(self.up(self.norm2(X))))


def gpt(
    vocabulary: int, *, width: int = 64, layers: int = 4, heads: int = 4, length: int = 32
) -> nn.Sequential:
    """A small GPT: "embed", "block1" to "block4", "head", one after another (Radford et al. 2019).

    Tokens [N, T], T up to `length`, to scores of the next word [N, T, vocabulary]. The matrix of
    the head is its own, not the embedding's, so that each can live on another device.
    """
    blocks = [(f"block{i + 1}", Block(width, heads)) for i in range(layers)]
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))
    embed = Embed(vocabulary, width, length)
    net = nn.Sequential(OrderedDict([("embed", embed), *blocks, ("head", head)]))
    for matrix in net.parameters():
        if matrix.dim() > 1:  # with torch's own, the first scores would be far too sure
            nn.init.normal_(matrix, std=0.02)
    return net


def next_word_loss(scores: Tensor, words: Tensor) -> Tensor:
    """Mean cross-entropy of scores [N, T, vocabulary] for the words that follow, [N, T]."""
    return F.cross_entropy(scores.flatten(0, 1), words.flatten())
