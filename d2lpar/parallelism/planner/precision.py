"""The arithmetic of a step: what numbers are, and what products run at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from ...machines.hardware import Accelerator
from ...machines.measuring.microbenchmarks import matmul_precision

FP8 = "float8"  # how the names of its types begin, which have one rate


@dataclass(frozen=True)
class Precision:
    """Numbers of `dtype` between layers; `rate` names the products' rate of an accelerator."""

    dtype: torch.dtype
    rate: str
    context: Callable[[], AbstractContextManager] = nullcontext

    @property
    def number_bytes(self) -> int:
        """Bytes of a parameter or an activation."""
        return self.dtype.itemsize


PRECISIONS = {
    "fp16": Precision(torch.float16, "float16"),
    "bf16": Precision(torch.bfloat16, "bfloat16"),
    "fp8": Precision(torch.bfloat16, FP8),
    "fp8-delayed": Precision(torch.bfloat16, FP8),  # scaled by what earlier steps found
    "tf32": Precision(torch.float32, "tfloat32", partial(matmul_precision, "high")),
    "fp32": Precision(torch.float32, "float32"),
}


def product_rate(accelerator: Accelerator, precision: str) -> float:
    """Peak FLOP/s of products in `precision`. Raises ValueError for fp8 on a card without it."""
    rate = PRECISIONS[precision].rate
    if rate != FP8:
        return accelerator.rate(rate)
    for name, flops_per_s in accelerator.flops_per_s.items():
        if name.startswith(FP8):
            return flops_per_s
    raise ValueError(
        f"{accelerator.name} has no rate for fp8: take precision='bf16', or a GPU from Ada and "
        "Hopper on, such as 8x-h100-nvswitch"
    )
