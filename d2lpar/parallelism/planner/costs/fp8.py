"""A product with weights in fp8, forward and backward, as torch computes it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from ....vgpu.torch_backend.private import torch_operators

FP8 = torch.float8_e4m3fn


class _Saved(Protocol):
    saved_tensors: tuple[torch.Tensor, ...]

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _Product(torch.autograd.Function):
    """x Wᵀ of a matrix x and weights W, which are cast beforehand, and so are gradients.

    Each is read once for its largest number, by which it is scaled (torchao's dynamic scaling), and
    cast along both dimensions: fp8's tensor cores take factors along the one that is summed
    (Micikevicius et al. 2022; NVIDIA, Transformer Engine).
    """

    @staticmethod
    def forward(ctx: _Saved, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _multiplied(x.to(FP8), weight.to(FP8).t(), x.amax(), weight.amax())

    @staticmethod
    def backward(ctx: _Saved, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        largest = dy.amax()
        dx = _multiplied(dy.to(FP8), _by_columns(weight), largest, largest)
        return dx, _multiplied(_by_columns(dy).t(), _by_columns(x), largest, largest)


def _by_columns(x: torch.Tensor) -> torch.Tensor:
    """A matrix in fp8 whose columns lie together."""
    return x.new_empty(x.shape[::-1], dtype=FP8).copy_(x.t()).t()


def _multiplied(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    scales = scale_a.float(), scale_b.float()
    return torch_operators.scaled_product(a, b, *scales, out_dtype=torch.bfloat16)


class _DelayedProduct(torch.autograd.Function):
    """The same by scales that earlier steps left, so that nothing is read for its largest number.

    One kernel casts along both dimensions, and weights are kept in fp8 (NVIDIA, Transformer Engine:
    delayed scaling, fp8 parameters).
    """

    @staticmethod
    def forward(ctx: _Saved, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        kept = weight.new_empty(weight.shape, dtype=FP8)
        by_rows, by_columns = _cast_both_ways(x)
        ctx.save_for_backward(by_columns, kept)
        scale = x.new_empty(())
        return _multiplied(by_rows, kept.t(), scale, scale)

    @staticmethod
    def backward(ctx: _Saved, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        by_rows, by_columns = _cast_both_ways(dy)
        scale = dy.new_empty(())
        dx = _multiplied(by_rows, _turned(weight), scale, scale)
        return dx, _multiplied(by_columns.t(), x, scale, scale)


def _cast_both_ways(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in fp8 whose rows lie together, and one whose columns do, by one kernel."""
    by_rows, turned = x.new_empty(2, *x.shape, dtype=FP8).copy_(x).unbind()
    return by_rows, _turned(turned)


def _turned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, if the columns had been written together."""
    return x.view(x.shape[::-1]).t()


class Fp8Linear(nn.Linear):
    """A linear layer whose three products are in fp8; everything else is as it was."""

    product: type[torch.autograd.Function] = _Product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, in_features] to […, out_features]."""
        y = self.product.apply(x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class DelayedFp8Linear(Fp8Linear):
    """The same with delayed scaling."""

    product = _DelayedProduct


LINEAR = {"fp8": Fp8Linear, "fp8-delayed": DelayedFp8Linear}  # by precision
