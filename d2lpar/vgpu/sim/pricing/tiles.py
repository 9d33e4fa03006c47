"""How long a device computes a matrix product: by tiles of its result, and by waves of them.

A multiprocessor computes one tile of the result after the other; edges are computed as if the tile
were full ("tile quantization"), and in the last wave some multiprocessors have nothing to do ("wave
quantization": NVIDIA, Matrix Multiplication Background User's Guide,
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/). Smaller
tiles fit better, but each of their elements is used less often once it was fetched, so they do not
run at the full rate. Where there are few tiles, the sum over k is cut in slices as well
("split-K"), whose results are added in the end. While multiprocessors idle the board has power to
spare, so the clock of the others is higher: what power lasts for limits the whole, not each wave.
Rows that are not aligned to 16 bytes are fetched number by number, which takes longer than to
multiply them.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd, inf, sqrt
from typing import NamedTuple

from ..constants import REFILL_S

# Those that cuBLAS and CUTLASS have kernels for; the thin ones are for few rows or columns.
TILES = (
    *((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)),
    *((128, 32), (32, 128), (128, 16), (16, 128)),
)
SHORTEST_SLICE = 256  # of the sum over k: four steps of 64, the depth of the usual pipeline
SLICES = (1, 2, 3, 4)  # where tiles leave multiprocessors idle; and as many as fill them once
PARTIAL_BYTES = 2 * 4  # of a slice's result: written and read in fp32, through the cache
ALIGNED_BYTES = 16  # of a row, that one instruction fetches
MOST_NARROW = 2  # numbers that one fetches of rows that are not aligned to so many bytes


class Product(NamedTuple):
    """`batch` products of an m × k matrix with a k × n matrix.

    `narrow` is how many numbers an instruction fetches, 1 or 2, where not all rows are aligned to
    16 bytes (see `fetched_at_once`).
    """

    m: int
    n: int
    k: int
    batch: int
    narrow: int | None = None


class MatmulDevice(NamedTuple):
    """What products need to know of a device, in a data type: FLOP/s that its multiprocessors
    issue together, that its power lasts for, bytes a second of its cache (see `Reach`).

    `narrow` are the FLOP/s that kernels issue which fetch one number at once, or two.
    """

    multiprocessors: int
    issued: float
    sustained: float
    full_tile: float
    tensor: bool
    cache_bytes_per_s: float
    adding_s: float
    cache_bytes: int = 0
    narrow: tuple[float, float] = (inf, inf)


class Tiling(NamedTuple):
    """The quickest way: seconds of arithmetic, the share of multiprocessors that it needs."""

    seconds: float
    occupancy: float
    tile: tuple[int, int]
    slices: int
    waves: int


def fetched_at_once(row_bytes: int, element_bytes: int) -> int | None:
    """Numbers of rows of so many bytes that one instruction fetches; None: as many as 16 bytes
    have, since the rows are aligned. cuBLAS has kernels for one (`align1`) and for two (`align2`).
    """
    alignment = gcd(row_bytes, ALIGNED_BYTES)
    return None if alignment == ALIGNED_BYTES else min(alignment // element_bytes, MOST_NARROW)


@lru_cache(maxsize=16384)
def tiling(product: Product, device: MatmulDevice) -> Tiling:
    """How a library that chooses well computes a product, as if all it reads were there."""
    flops = 2 * product.m * product.n * product.k * product.batch
    if not flops:
        return Tiling(0.0, 0.0, TILES[0], 1, 0)
    least_s = flops / device.sustained
    ways = (
        _way(product, device, tile, slices, least_s)
        for tile in TILES
        for slices in _slices(product, device, tile)
    )
    return min(ways, key=lambda way: way.seconds)


def read_again(product: Product, device: MatmulDevice, read_bytes: int) -> float:
    """Bytes that a product fetches from memory, as a multiple of the `read_bytes` of its factors.

    The tiles of one wave lie in a block of about as many rows as columns, and the waves go along a
    band of rows. So the left factor is fetched once if a band of it stays in the cache (half of
    which is for it), else for each block; the right one once if all of it stays, else for each
    band.
    """
    if not (product.m and product.n and product.k):
        return 1.0
    rows, columns = (way := tiling(product, device)).tile
    high, wide = ceil(product.m / rows), ceil(product.n / columns)
    in_wave = min(high * wide, device.multiprocessors / way.slices)
    band = min(high, max(sqrt(in_wave * columns / rows), 1.0))
    block = min(wide, max(in_wave / band, 1.0))
    left, right = product.m * product.k, product.k * product.n
    element_bytes = read_bytes / max((left + right) * product.batch, 1)
    room = device.cache_bytes / 2
    left_times = 1 if band * rows * product.k * element_bytes <= room else wide / block
    right_times = 1 if right * element_bytes <= room else high / band
    return (left * left_times + right * right_times) / max(left + right, 1)


def _way(
    product: Product, device: MatmulDevice, tile: tuple[int, int], slices: int, least_s: float
) -> Tiling:
    """One tile and one number of slices."""
    rows, columns = tile
    blocks = _tiles(product, tile) * slices
    waves = ceil(blocks / device.multiprocessors)
    rate = min(device.issued * _tile_share(tile, device), _fetched(product, tile, device))
    wave_flops = 2 * rows * columns * ceil(product.k / slices) * device.multiprocessors
    seconds = max(waves * wave_flops / rate, least_s) + (waves - 1) * REFILL_S
    if slices > 1:
        partial_bytes = slices * product.m * product.n * product.batch * PARTIAL_BYTES
        seconds += device.adding_s + partial_bytes / device.cache_bytes_per_s
    return Tiling(seconds, min(blocks / device.multiprocessors, 1.0), tile, slices, waves)


def _tiles(product: Product, tile: tuple[int, int]) -> int:
    return ceil(product.m / tile[0]) * ceil(product.n / tile[1]) * product.batch


def _slices(product: Product, device: MatmulDevice, tile: tuple[int, int]) -> list[int]:
    """In how many slices the sum may be cut."""
    filling = device.multiprocessors // _tiles(product, tile)
    if not filling:
        return [1]
    most = max(product.k // SHORTEST_SLICE, 1)
    return sorted({max(min(count, most), 1) for count in (*SLICES, filling)})


def _fetched(product: Product, tile: tuple[int, int], device: MatmulDevice) -> float:
    """FLOP/s for which threads fetch numbers: those of `narrow` with tiles of 128 x 128, of smaller
    ones so much less as they need more numbers."""
    if product.narrow is None or not device.tensor:
        return inf
    rows, columns = tile
    return device.narrow[product.narrow - 1] * min(rows * columns / (rows + columns) / 64, 1.0)


def _tile_share(tile: tuple[int, int], device: MatmulDevice) -> float:
    """Share of the rate that a tile of this size reaches.

    Tensor cores are fed from shared memory, whose bytes for a FLOP go with (r + c) / (r c).
    Ordinary cores spend instructions on what they fetch besides those that multiply: with four of
    the former for each element, a tile of 64 x 64 loses 6 % to one of 128 x 128, which cuBLAS on
    an A100 shows (triton-lang/triton, issue 2491: 17.6 of 19.5 TFLOP/s at 2048³).
    """
    rows, columns = tile
    fetched = (rows + columns) / (rows * columns)
    if device.tensor:
        return min(1.0, 1 / (fetched * device.full_tile))
    return 1 / (1 + 4 * max(fetched - 2 / 128, 0.0))
