"""Winograd's algorithm for convolutions of 3 × 3: fewer multiplications for more additions.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015): F(2 × 2, 3 × 3) takes 16
multiplications for four pixels that come out instead of 36, 32 additions for a tile of a channel
that comes in and 24 for one that goes out. cuDNN has it since version 5 for stride 1, in fp32 and
in fp16 (its documentation: CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD); tensor cores need none for fp16.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from .tiles import Product


class Winograd(NamedTuple):
    """The 16 products of a convolution over so many tiles of images."""

    tiles: int
    inputs: int
    outputs: int
    product: Product

    @property
    def flops(self) -> int:
        """FLOP of the 16 products, a multiplication and an addition each."""
        return 2 * 16 * self.tiles * self.inputs * self.outputs

    @property
    def additions(self) -> int:
        """Additions that transform the tiles, before and after the products."""
        return self.tiles * (32 * self.inputs + 24 * self.outputs)

    def of_images(self) -> Winograd:
        """The gradient of the images: the same from outputs to inputs."""
        product = Product(self.inputs, self.tiles, self.outputs, 16)
        return Winograd(self.tiles, self.outputs, self.inputs, product)

    def of_weights(self) -> Winograd:
        """The gradient of the weights: sums over the tiles."""
        return self._replace(product=Product(self.outputs, self.inputs, self.tiles, 16))


def winograd(
    images: Sequence[int],
    filters: Sequence[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Winograd | None:
    """The convolution that makes `images` (samples, channels, rows, columns) with `filters`
    (outputs, inputs, rows, columns), both shapes; None if the algorithm has none like it."""
    plain = set(stride) == {1} and set(dilation) == {1} and not transposed and groups == 1
    if not plain or tuple(filters[2:]) != (3, 3):
        return None
    tiles = images[0] * ceil(images[2] / 2) * ceil(images[3] / 2)
    outputs, inputs = filters[:2]
    return Winograd(tiles, inputs, outputs, Product(outputs, tiles, inputs, 16))
