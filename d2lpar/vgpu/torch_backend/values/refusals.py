"""What real kernels refuse: CUDA's of integers, and any of tensors that have shapes only.

Kernels of `meta` miss much of the latter, such as two data types in a product, and have words of
their own for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..private import torch_operators
from ..private.op_schema import OpTraits, aten, traits_of
from ..tensors.tensor import VirtualTensor
from .own_kernels import KERNELS

SMALL = 8  # sizes up to it, such as those of a convolution's kernel, stay as they are
_LACKS = ("Could not run", "'Half'", "'BFloat16'", "'Float8")  # kernels that devices do have

# They have kernels for integers on the CPU, and none on CUDA (torch.testing's OpInfo).
_OF_FLOATS = {
    *(aten.mm, aten.addmm, aten.addmm_, aten.mv, aten.addmv, aten.addmv_, aten.dot, aten.vdot),
    *(aten.bmm, aten.baddbmm, aten.baddbmm_, aten.addbmm, aten.addbmm_),
    *(aten.convolution, torch_operators.convolution, aten.avg_pool2d, aten.avg_pool3d),
    *(aten.max_pool2d_with_indices, aten.max_pool3d_with_indices),
    *(aten.upsample_bilinear2d, torch_operators.upsample_antialiased, aten.upsample_bicubic2d),
}


def refuse_integers(func: torch._ops.OpOverload, args: list) -> None:
    """Raise NotImplementedError where CUDA has no kernel for them."""
    if func.overloadpacket not in _OF_FLOATS:
        return
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    dtype, is_empty = tensors[0].dtype, any(tensor.numel() == 0 for tensor in tensors)
    if not (dtype.is_floating_point or dtype.is_complex or is_empty):
        raise NotImplementedError(
            f'"{traits_of(func).name}" is not implemented for {dtype} on CUDA, though it is on the '
            "CPU: take floating-point numbers, as .float() makes them"
        )


def refuse(func: torch._ops.OpOverload, args: list, kwargs: dict) -> None:
    """Raise the error that real kernels raise before they compute, if they do: they get tensors of
    the host, memory that nobody touches."""
    kwargs = {key: on_host(value) for key, value in kwargs.items()}
    error = _error_of(func, KERNELS.get(func, func), on_host(args), kwargs)
    if error is not None and "DefaultCPUAllocator" not in str(error):
        raise error from None


def is_refused(func: torch._ops.OpOverload, args: list, kwargs: dict, on_meta: Callable) -> bool:
    """Whether real kernels refuse such arguments whatever their values, as far as it shows in small
    tensors: large sizes become others, equal where they were, and fit if they do `on_meta`. Of what
    is written into `out` sizes may be sums of others: kernels only warn of it."""
    if "out" in kwargs or not _may_be_refused(func, traits_of(func), args):
        return False
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    large = dict.fromkeys(size for t in tensors for size in t.shape if size > SMALL)
    sizes = {size: SMALL + number for number, size in enumerate(large, start=1)}

    def error(kernel: Callable, device: str, fill: int) -> Exception | None:
        def small(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                shape = [sizes.get(size, size) for size in value.shape]
                return torch.empty(shape, dtype=value.dtype, device=device).fill_(fill)
            if isinstance(value, (list, tuple)):
                return [small(each) for each in value]
            if type(value) is int:
                return sizes.get(value, value)
            return torch.device(device) if isinstance(value, torch.device) else value

        return _error_of(func, kernel, small(args), {k: small(v) for k, v in kwargs.items()})

    kernel = KERNELS.get(func, func)
    if error(kernel, "cpu", 0) is None or error(kernel, "cpu", 1) is None:
        return False
    unfit = error(on_meta, "meta", 0)
    return unfit is None or is_of_meta(unfit)


def is_of_meta(error: Exception) -> bool:
    """Whether tensors with values would not have met it."""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def on_host(value: Any) -> Any:
    """Tensors without values as some of the host, of their shapes: memory that nobody touches."""
    if isinstance(value, VirtualTensor):
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return like if like.is_floating_point() else like.zero_()  # it may be an index
    if isinstance(value, (list, tuple)):
        return [on_host(v) for v in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _may_be_refused(func: torch._ops.OpOverload, traits: OpTraits, args: list) -> bool:
    """Not views; nor what autograd asks for, as forward passes have fitted; nor a program's own
    operators, which may do anything; nor where it is for values to say how many there are."""
    backward = "backward" in traits.name
    if func.namespace != "aten" or not traits.launches or traits.waits or backward:
        return False
    masks = (torch.bool, torch.uint8)
    indices = args[1] if traits.host_argument == 1 else []
    return not any(isinstance(t, torch.Tensor) and t.dtype in masks for t in indices)


def _error_of(
    func: torch._ops.OpOverload, kernel: Callable, args: list, kwargs: dict
) -> Exception | None:
    """What the host's kernel of this operation raises, unless it is for want of one.

    Random numbers stay as they are. One thread: several wait long for each other on a busy machine.
    """
    draws, threads = torch.Tag.nondeterministic_seeded in func.tags, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=()) if draws else nullcontext():
            kernel(*args, **kwargs)
    except Exception as error:
        lacks = isinstance(error, NotImplementedError) and any(w in str(error) for w in _LACKS)
        return None if lacks else error
    finally:
        torch.set_num_threads(threads)
    return None
