"""Products and convolutions in float16: torch's kernels for the CPU take up to 200 times as long in
it as in float32, so programs with `autocast` would hardly come forward.

They are computed in float32 and rounded once at the end, as a GPU's tensor cores add up in float32.
Values on a GPU, and tensors without values, are left to torch's own kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
)


def _in_float32(func: torch._ops.OpOverload) -> Callable[..., object]:
    """The same operation, for which float16 arguments are float32, and results float16 again."""

    @functools.wraps(func)
    def compute(*args: object, **kwargs: object) -> object:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if not all(map(_is_slow, tensors)):  # also of several types, which torch refuses
            return func(*args, **kwargs)
        wide = [value.float() if isinstance(value, torch.Tensor) else value for value in args]
        found = func(*wide, **kwargs)
        return tuple(map(_rounded, found)) if isinstance(found, tuple) else _rounded(found)

    return compute


def _is_slow(tensor: torch.Tensor) -> bool:
    here = tensor.dtype == torch.float16 and tensor.device.type == "cpu"
    return here and tensor.layout == torch.strided


def _rounded(found: torch.Tensor | None) -> torch.Tensor | None:
    return None if found is None else found.half()


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    func: _in_float32(func) for func in _PRODUCTS
}
