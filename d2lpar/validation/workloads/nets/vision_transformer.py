"""The vision transformer (Dosovitskiy et al. 2020) operation by operation, as timm has it.

Queries, keys and values come from one product and are looked at where they lie: torchvision's
`nn.MultiheadAttention` copies them, and adds their bias by a kernel of its own
(huggingface/pytorch-image-models, timm/models/vision_transformer.py, timm/layers/attention.py).
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

PATCH, SIDE, CLASSES = 16, 224, 1000


class Block(nn.Module):
    """Attention and a two-layer perceptron, each of a normalised input, and added to it.

    Queries, keys and values come from one product or from three.
    """

    def __init__(self, hidden: int, heads: int, *, together: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.last_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        outputs = [3 * hidden] if together else [hidden] * 3
        self.qkv = nn.ModuleList(nn.Linear(hidden, n) for n in outputs)
        self.out = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches + 1, hidden] to the same."""
        x = x + self.out(self.attention(self.norm(x)))
        return x + self.down(F.gelu(self.up(self.last_norm(x))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches + 1, hidden] to the same."""
        batch, patches, hidden = x.shape
        size = hidden // self.heads
        if len(self.qkv) == 1:
            qkv = self.qkv[0](x).view(batch, patches, 3, self.heads, size)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            parts = (linear(x).view(batch, patches, self.heads, size) for linear in self.qkv)
            q, k, v = (part.transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


class VisionTransformer(nn.Module):
    """From images [batch, 3, side, side] to scores [batch, 1000]."""

    def __init__(self, *, layers: int, hidden: int, heads: int, side: int = SIDE) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, PATCH, PATCH)
        self.first = nn.Parameter(torch.empty(1, 1, hidden))
        self.places = nn.Parameter(torch.empty(1, (side // PATCH) ** 2 + 1, hidden))
        self.layers = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The scores of the classes, from the first token."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class WrittenAttention(nn.Module):
    """Attention by products and a softmax, with a module for each of its parts."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.softmax = nn.Softmax(-1)
        self.dropout, self.last_dropout = nn.Dropout(0.0), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches + 1, hidden] to the same."""
        parts = (linear(x) for linear in (self.query, self.key, self.value))
        q, k, v = (
            part.view(*x.shape[:2], self.heads, self.size).permute(0, 2, 1, 3) for part in parts
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size)
        y = torch.matmul(self.dropout(self.softmax(scores)), v)
        y = y.permute(0, 2, 1, 3).contiguous().view(x.shape)
        return self.last_dropout(self.out(y))


class WrittenPerceptron(nn.Module):
    """Two layers, something dropped after each."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches + 1, hidden] to the same."""
        return self.dropout(self.down(self.dropout(F.gelu(self.up(x)))))


class WrittenBlock(nn.Module):
    """A block as jeonsworld/ViT-pytorch has it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm, self.last_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = WrittenAttention(hidden, heads)
        self.perceptron = WrittenPerceptron(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches + 1, hidden] to the same."""
        x = self.attention(self.norm(x)) + x
        return self.perceptron(self.last_norm(x)) + x


class WrittenVisionTransformer(VisionTransformer):
    """ViT-B/16 of images of 384 x 384 out of `WrittenBlock`s."""

    def __init__(self) -> None:
        super().__init__(layers=0, hidden=768, heads=12, side=384)
        self.layers = nn.Sequential(*(WrittenBlock(768, 12) for _ in range(12)))


class WeatherTransformer(nn.Module):
    """From fields [batch, 20, 360, 720] to those of a later hour, in patches of 8 x 8.

    NERSC/sc24-dl-tutorial, networks/vit.py.
    """

    def __init__(self, *, layers: int, hidden: int, heads: int, fields: int = 20) -> None:
        super().__init__()
        self.patches, self.rows, self.columns = nn.Conv2d(fields, hidden, 8, 8), 45, 90
        self.places = nn.Parameter(torch.empty(1, self.rows * self.columns, hidden))
        blocks = (Block(hidden, heads, together=False) for _ in range(layers))
        self.layers = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, fields * 64, bias=False)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """The fields that are predicted, of the same shape."""
        x = self.patches(fields).flatten(2).transpose(1, 2) + self.places
        x = self.head(self.norm(self.layers(x))).view(len(x), self.rows, self.columns, 8, 8, -1)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(fields.shape)
