"""The vision transformer (Dosovitskiy et al. 2020) operation by operation, as timm has it.

Queries, keys and values come from one product and are looked at where they lie: torchvision's
`nn.MultiheadAttention` copies them, and adds their bias by a kernel of its own
(huggingface/pytorch-image-models, timm/models/vision_transformer.py, timm/layers/attention.py).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

PATCH, SIDE, CLASSES = 16, 224, 1000


class Block(nn.Module):
    """Attention and a two-layer perceptron, each of a normalised input, and added to it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.last_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches + 1, hidden] to the same."""
        x = x + self.out(self.attention(self.norm(x)))
        return x + self.down(F.gelu(self.up(self.last_norm(x))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches + 1, hidden] to the same."""
        batch, patches, hidden = x.shape
        qkv = self.qkv(x).view(batch, patches, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


class VisionTransformer(nn.Module):
    """From images [batch, 3, 224, 224] to scores [batch, 1000]."""

    def __init__(self, *, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, PATCH, PATCH)
        self.first = nn.Parameter(torch.empty(1, 1, hidden))
        self.places = nn.Parameter(torch.empty(1, (SIDE // PATCH) ** 2 + 1, hidden))
        self.layers = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The scores of the classes, from the first token."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])
