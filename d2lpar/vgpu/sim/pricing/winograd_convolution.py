"""Winograd's algorithm for convolutions of 3 × 3: fewer multiplications for more additions.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). cuDNN has it for stride
1, in fp32 and in fp16, in two forms (its documentation: CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD and
…_NONFUSED; kernels, grids and times of 20,000 convolutions on four GPUs are in sitar-lab/NeuSight,
2024). *Fused*, F(2 × 2, 3 × 3): 16 multiplications for four pixels that come out instead of 36; one
kernel transforms the filters, another does the rest, whose blocks have 8 × 16 pixels of an image
and 32 channels that come out. *Apart*, F(4 × 4, 3 × 3): 36 for sixteen instead of 144; images and
filters are transformed, multiplied and transformed back by a kernel each, all of it through memory.
Gradients of filters have the second form only. Tensor cores need neither for fp16.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from .tiles import Product

BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_OUTPUTS = 8, 16, 32
BLOCK_TILES = BLOCK_ROWS * BLOCK_COLUMNS // 4
BLOCKS_TOGETHER = 2  # on a multiprocessor, each at half of its rate


class Winograd(NamedTuple):
    """A convolution of `samples` images, by sizes of what comes out; or, with `sums`, the gradient
    of its filters."""

    samples: int
    rows: int
    columns: int
    inputs: int
    outputs: int
    element_bytes: int
    sums: bool = False

    def of_images(self) -> Winograd:
        """The gradient of the images: the same from outputs to inputs."""
        return self._replace(inputs=self.outputs, outputs=self.inputs)

    def of_weights(self) -> Winograd:
        """The gradient of the weights: sums over the tiles."""
        return self._replace(sums=True)

    @property
    def blocks(self) -> int:
        """Of the fused kernel."""
        places = ceil(self.rows / BLOCK_ROWS) * ceil(self.columns / BLOCK_COLUMNS)
        return self.samples * places * ceil(self.outputs / BLOCK_OUTPUTS)

    @property
    def block_flops(self) -> int:
        """FLOP of a block's 16 products, a multiplication and an addition each."""
        return 2 * 16 * BLOCK_TILES * BLOCK_OUTPUTS * self.inputs

    @property
    def filter_bytes(self) -> tuple[int, int]:
        """Bytes of the filters, and of what the fused form makes of them."""
        return self._filters(9), self._filters(16)

    @property
    def product(self) -> Product:
        """The 36 products apart."""
        if self.sums:
            return Product(self.outputs, self.inputs, self._tiles, 36)
        return Product(self.outputs, self._tiles, self.inputs, 36)

    @property
    def moved_bytes(self) -> tuple[int, int, int]:
        """What the three transforms read and write apart: of images, of filters (or of gradients,
        to be summed), of what comes out."""
        tile = self._tiles * self.element_bytes
        images, results = (16 + 36) * tile * self.inputs, (16 + 36) * tile * self.outputs
        filters = self._filters(9 + 36)
        return (images, results, filters) if self.sums else (images, filters, results)

    @property
    def _tiles(self) -> int:
        return self.samples * ceil(self.rows / 4) * ceil(self.columns / 4)

    def _filters(self, numbers: int) -> int:
        return numbers * self.inputs * self.outputs * self.element_bytes


def winograd(
    images: Sequence[int],
    filters: Sequence[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *,
    element_bytes: int = 4,
) -> Winograd | None:
    """The convolution that makes `images` (samples, channels, rows, columns) with `filters`
    (outputs, inputs, rows, columns), both shapes; None if the algorithm has none like it."""
    plain = set(stride) == {1} and set(dilation) == {1} and not transposed and groups == 1
    if not plain or tuple(filters[2:]) != (3, 3):
        return None
    outputs, inputs = filters[:2]
    return Winograd(images[0], images[2], images[3], inputs, outputs, element_bytes)
