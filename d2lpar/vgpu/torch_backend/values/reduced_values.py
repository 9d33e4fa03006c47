"""The arithmetic of reductions: values of several ranks or devices, added up in their order.

Numbers of eight bits are added as NCCL adds them on GPUs that can: each partial sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PAIRS: dict[str, Combine] = {  # each changes its first argument
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PREMUL_SUM": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MAX": lambda total, other: total.copy_(torch.maximum(total, other)),
    "MIN": lambda total, other: total.copy_(torch.minimum(total, other)),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)  # those that NCCL reduces


def reduced(op: str, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Plain tensors of one shape, reduced by `op`; on `meta` if one of them is there."""
    if any(values.is_meta for values in given):
        return given[0].to("meta")
    total = given[0].clone()
    combine = _rounded(PAIRS[op]) if total.dtype in FLOAT8 else PAIRS[op]
    for other in given[1:]:
        combine(total, other)
    if op == "AVG":
        _divide(total, len(given))
    return total


def _rounded(combine: Combine) -> Combine:
    """The same for numbers of eight bits, which the CPU's kernels do not take."""

    def in_single_precision(total: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return total.copy_(combine(total.float(), other.float()))

    return in_single_precision


def _divide(total: torch.Tensor, count: int) -> None:
    if total.dtype in FLOAT8:
        total.copy_(total.float() / count)
    else:
        total.div_(count, rounding_mode=None if total.is_floating_point() else "trunc")
