"""What an operation would return, from shapes alone: worked out on `meta`, once a signature."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...sim.pricing.kernel_cost import Cost
from ..cost.op_cost import cost_of
from ..private import torch_operators
from ..tensors.tensor import TensorLayout, VirtualTensor, laid_out_alone, layout_of
from ..values import own_kernels
from ..values.refusals import is_of_meta, is_refused, refuse, refuse_integers
from . import meta_batch_norm

KERNELS = own_kernels.KERNELS | meta_batch_norm.KERNELS
CONVOLUTIONS = {torch.ops.aten.convolution.default, torch_operators.convolution.default}


class Argument(NamedTuple):
    """Stands for the operation's own argument: its `number`-th virtual tensor, written in place."""

    number: int


class Inferred(NamedTuple):
    """Outputs as `TensorLayout`s and `Argument`s, new layouts of arguments by number, the cost."""

    outputs: object
    reshaped: dict[int, TensorLayout]
    cost: Cost


def infer(func: torch._ops.OpOverload, args: list, kwargs: dict) -> Inferred:
    """Run `func` on meta tensors. RuntimeError if its result depends on values.

    Other errors, such as shapes that do not fit, are the program's: they come as tensors with
    values meet them.
    """
    kernel = KERNELS.get(func, func)
    given = args, kwargs
    refuse_integers(func, args)
    if is_refused(func, args, kwargs, kernel):
        refuse(func, *given)
    metas: list[torch.Tensor] = []
    before: list[TensorLayout] = []

    def to_meta(value: object) -> object:
        if isinstance(value, VirtualTensor):
            before.append(layout_of(value))
            metas.append(before[-1].empty())
            return metas[-1]
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        if isinstance(value, (list, tuple)):
            return [to_meta(v) for v in value]
        return torch.device("meta") if isinstance(value, torch.device) else value

    args = [to_meta(value) for value in args]
    kwargs = {key: to_meta(value) for key, value in kwargs.items()}
    try:
        result = kernel(*args, **kwargs)
        if func in CONVOLUTIONS:
            result = _in_format_of(args, result)
        cost = cost_of(func, args, kwargs, result)
    except Exception as error:
        if not is_of_meta(error):
            refuse(func, *given)
            raise
        raise RuntimeError(
            f"{func} cannot be simulated from shapes alone ({_reason(func, error)}). Run it with "
            "values: without --shapes-only, or outside shape_only()."
        ) from None
    numbers = {id(meta): i for i, meta in enumerate(metas)}
    outputs = _describe(result, numbers)
    after = [layout_of(meta) for meta in metas]
    reshaped = {
        i: new for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new
    }
    return Inferred(outputs, reshaped, cost)


def _reason(func: torch._ops.OpOverload, error: Exception) -> str:
    """What a program can know of it: torch advises those who define operators."""
    if torch.Tag.dynamic_output_shape in func.tags:
        return "the shape of its result depends on values"
    return str(error).split(". ")[0].splitlines()[0]


def _in_format_of(args: list, result: torch.Tensor) -> torch.Tensor:
    """Devices keep channels last if images or weights have them so; on `meta` that is lost."""
    last = torch.channels_last
    if result.dim() == 4 and any(
        t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in args[:2]
    ):
        return result.contiguous(memory_format=last)
    return result


def _describe(value: object, numbers: dict[int, int]) -> object:
    if isinstance(value, torch.Tensor):
        number = numbers.get(id(value))
        return laid_out_alone(value) if number is None else Argument(number)
    if isinstance(value, (list, tuple)):
        return [_describe(v, numbers) for v in value]
    return value
