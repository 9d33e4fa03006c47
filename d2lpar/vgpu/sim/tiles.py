"""How well a matrix product fills a device: by tiles of its result, and by waves of them.

A multiprocessor computes one tile of the result after the other; edges are computed as if the tile
were full ("tile quantization"), and in the last wave some multiprocessors have nothing to do ("wave
quantization": NVIDIA, Matrix Multiplication Background User's Guide,
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/). Where
there are fewer tiles than multiprocessors, the sum over k is cut in slices as well ("split-K").
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

# A large and a small one of that guide's "typical tile dimensions"; two stand for all, and no
# published figure decided which.
TILES = ((128, 128), (64, 64))
SHORTEST_SLICE = 128  # of the sum over k: assumed


class Product(NamedTuple):
    """`batch` products of an m × k matrix with a k × n matrix."""

    m: int
    n: int
    k: int
    batch: int


@lru_cache(maxsize=4096)
def utilisation(product: Product, multiprocessors: int) -> float:
    """Useful share of what the multiprocessors could have computed in the time, 0 to 1."""
    useful = product.m * product.n * product.k * product.batch
    if not useful:
        return 1.0
    return max(useful / _computed(product, *tile, multiprocessors) for tile in TILES)


def _computed(product: Product, rows: int, columns: int, multiprocessors: int) -> int:
    """Multiply-adds for which all multiprocessors have time until the last tile is done."""
    tiles = ceil(product.m / rows) * ceil(product.n / columns) * product.batch
    slices = max(min(multiprocessors // tiles, product.k // SHORTEST_SLICE), 1)
    waves = ceil(tiles * slices / multiprocessors)
    return waves * multiprocessors * rows * columns * ceil(product.k / slices)
