"""Matrix products and convolutions of half precision, where the processor has no instructions for
them: in fp32, and rounded once, as tensor cores do.

torch's own kernels take about twenty times as long there as those for fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..private import torch_devices, torch_operators
from ..private.op_schema import aten

PRODUCTS = (
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    torch_operators.product_with_activation.default,
)
HALF = (torch.float16, torch.bfloat16)


def computed_wide(func: torch._ops.OpOverload) -> Callable[..., object]:
    """`func`, which computes operands of one half precision in fp32 if they are slow otherwise."""

    def kernel(*args: Any, **kwargs: Any) -> object:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        dtype = tensors[0].dtype
        if not is_slow(dtype) or not all(_is_dense(t) and t.dtype == dtype for t in tensors):
            return func(*args, **kwargs)
        wide = [value.float() if isinstance(value, torch.Tensor) else value for value in args]
        results = func(*wide, **kwargs)
        if isinstance(results, torch.Tensor):
            return results.to(dtype)
        return tuple(None if result is None else result.to(dtype) for result in results)

    return kernel


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout == torch.strided


@cache
def is_slow(dtype: torch.dtype) -> bool:
    """Whether the processor multiplies fp32 faster than numbers of this type."""
    return dtype in HALF and not torch_devices.has_instructions_for(dtype)


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    func: computed_wide(func) for func in PRODUCTS
}
