"""Memory that a program has asked for and not written: zeros, as a GPU gives it to a process.

CUDA promises nothing of it, but its driver clears what other processes had. A program that reads
it by mistake, such as buffers that `Module.to_empty` made and nothing filled, mostly finds zeros
on a GPU; in the memory of the processor it finds what others have left, in each run something else.
"""

from __future__ import annotations

import torch
from torch.utils import deterministic


def cleared(values: torch.Tensor) -> torch.Tensor:
    """New values, set to zero: but what torch itself fills with NaN, so that programs that read it
    are noticed (`torch.utils.deterministic.fill_uninitialized_memory`)."""
    fills: bool = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # a property
    is_filled = fills and torch.are_deterministic_algorithms_enabled()
    if values.layout is torch.strided and not values.is_quantized and not is_filled:
        values.zero_()
    return values
