"""The arithmetic of a step: what numbers are, and what products run at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from ...machines.hardware import Accelerator
from ...machines.measuring.microbenchmarks import matmul_precision
from ...vgpu.device_naming import TYPE

FP8 = "float8"  # how the names of its types begin, which have one rate


@dataclass(frozen=True)
class Precision:
    """Parameters, and what lies between layers, are of `dtype`; `rate` names the products' rate of
    an accelerator, `context` is the program's. `autocast`: what it casts for products, if it does.
    """

    dtype: torch.dtype
    rate: str
    context: Callable[[], AbstractContextManager] = nullcontext
    autocast: torch.dtype | None = None

    @property
    def product_dtype(self) -> torch.dtype:
        """What products read and write."""
        return self.autocast or self.dtype

    def forward_context(self) -> AbstractContextManager:
        """That of the forward pass of a micro-batch, which casts each weight anew."""
        return nullcontext() if self.autocast is None else torch.autocast(TYPE, self.autocast)


PRECISIONS = {
    "fp16": Precision(torch.float16, "float16"),
    "bf16": Precision(torch.bfloat16, "bfloat16"),
    "fp16-autocast": Precision(torch.float32, "float16", autocast=torch.float16),
    "bf16-autocast": Precision(torch.float32, "bfloat16", autocast=torch.bfloat16),
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
