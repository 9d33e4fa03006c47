"""What a kernel costs a device: FLOP, bytes, and by the roofline model, seconds.

Williams, Waterman and Patterson, "Roofline" (2009): a kernel lasts as long as the slower of its
arithmetic and its memory traffic. Matrix products are computed in tiles (`tiles`), convolutions as
the products that they amount to, or by Winograd's algorithm if that is faster
(`winograd_convolution`). Tensor cores want images with their channels last: cuDNN transposes others
before and after a convolution (NVIDIA, "Tensor Core AI performance milestones", 2018).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...machines.hardware import Accelerator
from .constants import CONVOLUTION_EFFICIENCY, MATMUL_EFFICIENCY, MEMORY_EFFICIENCY
from .tiles import Product, utilisation
from .winograd_convolution import Winograd


class Kernel(NamedTuple):
    """One kernel of an operation: FLOP, bytes, the matrix product that it is.

    Convolutions have bytes to be transposed, and perhaps another algorithm.
    """

    flops: int
    bytes: int
    product: Product | None = None
    transposed_bytes: int = 0
    winograd: Winograd | None = None


class Cost:
    """Work of one operation: `kernels` one after the other, in arithmetic of `dtype` ("float32").

    `convolves` says whose setting decides if fp32 may be rounded to TF32.
    """

    __slots__ = ("_known", "bytes", "convolves", "dtype", "flops", "kernels")

    def __init__(self, *kernels: Kernel, dtype: str = "float32", convolves: bool = False) -> None:
        self.kernels = kernels
        self.dtype = dtype
        self.convolves = convolves
        self.flops = sum(kernel.flops for kernel in kernels)
        self.bytes = sum(kernel.bytes for kernel in kernels)
        self._known: tuple[Accelerator, str, float] | None = None

    def seconds(self, accelerator: Accelerator) -> float:
        """How long it takes; worked out once for an accelerator and a setting of TF32."""
        dtype = self.dtype
        if dtype == "float32" and self.flops and "tfloat32" in accelerator.flops_per_s:
            dtype = "tfloat32" if may_round_to_tf32(convolves=self.convolves) else dtype
        known = self._known
        if known is None or known[0] is not accelerator or known[1] != dtype:
            rates = _Rates(accelerator, dtype, convolves=self.convolves)
            total_s = sum(rates.seconds(kernel) for kernel in self.kernels)
            self._known = known = (accelerator, dtype, total_s)
        return known[2]


def may_round_to_tf32(*, convolves: bool) -> bool:
    """What torch is set to: by default convolutions of fp32 may use TF32, matrix products not."""
    if convolves:
        # The module gets this name only when it is imported.
        return torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def traffic(nbytes: int) -> Cost:
    """The cost of a kernel that reads and writes `nbytes` in all."""
    return Cost(Kernel(0, nbytes))


class _Rates:
    """What an accelerator reaches: of peaks a share; measured rates are reached already."""

    def __init__(self, accelerator: Accelerator, dtype: str, *, convolves: bool) -> None:
        arithmetic, memory = (
            (1.0, 1.0)
            if accelerator.measured
            else (
                CONVOLUTION_EFFICIENCY if convolves else MATMUL_EFFICIENCY,
                MEMORY_EFFICIENCY,
            )
        )
        self.latency_s = accelerator.kernel_latency_s
        self.multiprocessors = accelerator.multiprocessors
        self.flops_per_s = accelerator.rate(dtype) * arithmetic
        self.plain_flops_per_s = accelerator.rate("float32") * arithmetic
        self.bytes_per_s = accelerator.memory_bytes_per_s * memory
        self.has_tensor_cores = accelerator.rate(dtype) > accelerator.rate("float32")
        self.is_float32 = dtype in ("float32", "tfloat32")

    def seconds(self, kernel: Kernel) -> float:
        compute_s = kernel.flops / self.flops_per_s / self._used(kernel.product)
        if kernel.winograd is not None and self.is_float32:
            compute_s = min(compute_s, self._winograd_s(kernel.winograd))
        transposed_bytes = kernel.transposed_bytes if self.has_tensor_cores else 0
        memory_s = kernel.bytes / self.bytes_per_s
        return self.latency_s + max(compute_s, memory_s) + transposed_bytes / self.bytes_per_s

    def _winograd_s(self, work: Winograd) -> float:
        multiplying_s = work.flops / self.plain_flops_per_s / self._used(work.product)
        return multiplying_s + 2 * work.additions / self.plain_flops_per_s

    def _used(self, product: Product | None) -> float:
        if product is None or self.multiprocessors is None:
            return 1.0
        return utilisation(product, self.multiprocessors)
