"""What sorting costs: as many kernels as the numbers need, from shapes and data types alone.

PyTorch has a kernel of its own for short rows, which sorts each of them in shared memory. Longer
ones are sorted digit by digit (radix sort; Adinets and Merrill, "Onesweep", 2022): every pass reads
and writes all numbers and their places (aten/src/ATen/native/cuda: Sort.cu, SortStable.cu; CUB's
`DeviceRadixSort` and `DeviceSegmentedRadixSort`).

On an RTX 5080 four million numbers take 7 % longer than measured in fp32 and 2 % in fp64
(https://github.com/JuliaGPU/AcceleratedKernels.jl/pull/97, 2026). Short rows are too fast, by a
third to three quarters: what threads do in shared memory is not counted
(https://github.com/FlagOpen/FlagGems/pull/694, 2025, of a GPU without a name, as an A100).
"""

from __future__ import annotations

import math

import torch

from ...sim.pricing.kernel_cost import Kernel

LONGEST_IN_ONE_KERNEL = 4096
FEW_ROWS = 128  # of long ones; fewer are sorted as one, as each would have but one block
DIGIT_BITS, DIGIT_BITS_OF_ROWS = 8, 6
PLACE_BYTES = 8


def sorting(x: torch.Tensor, along: int) -> list[Kernel]:
    """The kernels of `x.sort(along)`, which returns numbers and the places they came from."""
    count, each = x.numel(), x.element_size()
    row = x.shape[along] if x.dim() else 1
    rows = count // max(row, 1)
    places = Kernel(0, count * PLACE_BYTES)
    moved = 2 * count * (each + PLACE_BYTES)
    if row <= LONGEST_IN_ONE_KERNEL:
        return [Kernel(0, 2 * count * each), places, Kernel(0, moved, blocks=rows)]
    if rows == 1:
        return [places, *by_digits(count, each)]
    if rows < FEW_ROWS:  # by their numbers, and then by the rows that they belong to
        fetched = Kernel(0, 2 * moved)
        return [places, *by_digits(count, each), *by_digits(count, PLACE_BYTES), fetched]
    passes = math.ceil(8 * each / DIGIT_BITS_OF_ROWS)
    return [places, *[Kernel(0, moved, blocks=rows)] * passes]


def by_digits(count: int, key_bytes: int) -> list[Kernel]:
    """Sorting `count` keys of `key_bytes` with their places: how often each digit occurs, the sums
    of that, then a pass for each digit."""
    passes = math.ceil(8 * key_bytes / DIGIT_BITS)
    moved = 2 * count * (key_bytes + PLACE_BYTES)
    return [Kernel(0, count * key_bytes), Kernel(0, 0), *[Kernel(0, moved)] * passes]
