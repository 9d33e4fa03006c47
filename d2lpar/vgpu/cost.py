"""What an operation costs a device: FLOP, bytes, and by the roofline model, seconds.

Williams, Waterman and Patterson, "Roofline" (2009): an operation lasts as long as the slower of its
arithmetic and its memory traffic. FLOP are counted by `torch.utils.flop_counter`; bytes are those
of the tensors read and written, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from ..machines import Accelerator

# What programs reach of the catalogue's peaks, the same on every machine.
MATMUL_EFFICIENCY = 0.89  # fitted: 13.9 of 15.7 TFLOP/s in the textbook's products of 4000 x 4000
MEMORY_EFFICIENCY = 0.8  # of peak bandwidth, for streaming kernels: assumed, not fitted


class Cost(NamedTuple):
    """Work of one operation: `flops` in arithmetic of `dtype` ("float32"), `bytes` moved."""

    flops: int
    bytes: int
    dtype: str

    def seconds(self, accelerator: Accelerator) -> float:
        compute_s = self.flops / (accelerator.rate(self.dtype) * MATMUL_EFFICIENCY)
        memory_s = self.bytes / (accelerator.memory_bytes_per_s * MEMORY_EFFICIENCY)
        return accelerator.kernel_latency_s + max(compute_s, memory_s)


def cost_of(
    func: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: dict[str, object],
    outputs: object,
) -> Cost:
    """The cost of `outputs = func(*args, **kwargs)`, from shapes and data types alone."""
    formula = flop_registry.get(func._overloadpacket)
    flops = int(formula(*args, **kwargs, out_val=outputs)) if formula else 0
    tensors = [*_tensors(args), *_tensors(kwargs.values()), *_tensors([outputs])]
    nbytes = sum(t.numel() * t.element_size() for t in tensors)
    floating = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    return Cost(flops, nbytes, str(floating).removeprefix("torch."))


def _tensors(values: object) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_tensors(value))
    return found
