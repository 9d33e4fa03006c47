"""The tensor of a virtual device: a wrapper that carries the device, around one that has the values.

The wrapper is what torch sees: shape, strides, data type, autograd graph and `device="vgpu:i"`. The
backing tensor lives where the arithmetic is done. Under `shape_only` there is none until needed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from . import _torch
from .memory import Allocation
from .runtime import runtime


class Layout(NamedTuple):
    """Shape and memory order of a tensor, all that is kept of it under `shape_only`."""

    shape: Sequence[int]
    stride: Sequence[int]
    offset: int
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        span = self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride))
        flat = torch.empty(max(span, 0), dtype=self.dtype, device="meta")
        return flat.as_strided(self.shape, self.stride, self.offset)


def layout_of(tensor: torch.Tensor) -> Layout:
    if tensor.layout is not torch.strided:  # a shape is all that sparse formats have in common
        return Layout(tensor.shape, torch.empty(tensor.shape, device="meta").stride(), 0, tensor.dtype)
    return Layout(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)


class VirtualTensor(torch.Tensor):
    """A tensor on `vgpu:i`. Made by torch's own functions, never by hand.

    `_backing` is the tensor with the values (None: none was needed yet), `_allocation` its share of
    the device's memory, `_index` the number of the device.
    """

    _backing: torch.Tensor | None
    _allocation: Allocation
    _index: int
    dispatcher: Callable[..., object]  # set by `dispatch`, which stands above this module

    __torch_function__ = _torch.no_torch_function

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # noqa: ANN001 (torch's)
        return VirtualTensor.dispatcher(func, args, kwargs or {})

    # torch's own setter would move the shape and leave the values behind.
    @property
    def data(self) -> torch.Tensor:
        return _torch.get_data(self)

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, VirtualTensor):
            raise TypeError(
                f"cannot set the data of a tensor on {self.device} to one on {other.device}: "
                "virtual GPUs have memory of their own; use copy_() or .to(device)"
            )
        adopt(self, other)

    @property
    def layout(self) -> torch.layout:
        return torch.strided if self._backing is None else self._backing.layout

    def tolist(self) -> object:
        return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        marks = [f"device='{self.device}'"]
        if self.grad_fn is not None:
            marks.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
        elif self.requires_grad:
            marks.append("requires_grad=True")
        text = f"{repr(self.detach().cpu())[:-1]}, {', '.join(marks)})"
        return f"Parameter containing:\n{text}" if getattr(self, "_is_param", False) else text

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment"
            )
        with torch.no_grad():
            twin = self.detach().clone(memory_format=torch.preserve_format)
        twin.requires_grad_(self.requires_grad)
        memo[id(self)] = twin
        mine = {"_backing", "_allocation", "_index"}
        for name, value in self.__dict__.items():
            if name not in mine:
                twin.__dict__[name] = copy.deepcopy(value, memo)
        if self.grad is not None:
            twin.grad = copy.deepcopy(self.grad, memo)
        return twin

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Save as a CPU tensor (or Parameter), which loads where there are no virtual GPUs."""
        values = self.detach().cpu()
        if getattr(self, "_is_param", False):
            values = torch.nn.Parameter(values, self.requires_grad)
        elif self.is_leaf:
            values.requires_grad_(self.requires_grad)
        return values.__reduce_ex__(protocol)


def wrap(
    values: torch.Tensor | None,
    index: int,
    *,
    layout: Layout | None = None,
    allocation: Allocation | None = None,
) -> VirtualTensor:
    """A tensor on `vgpu:index` with these values; None makes one that has but a layout."""
    shape, stride, offset, dtype = layout or layout_of(values)
    wrapper = _torch.make_wrapper_subclass(
        VirtualTensor,
        shape,
        stride,
        offset,
        dtype=dtype,
        device=torch.device("vgpu", index),
    )
    if values is not None:
        _mirror_bits(wrapper, values)
    if allocation is None:
        memory = runtime().memories[index]
        allocation = memory.allocate(wrapper.numel() * dtype.itemsize)
    wrapper._backing = values
    wrapper._allocation = allocation
    wrapper._index = index
    return wrapper


def _mirror_bits(wrapper: VirtualTensor, values: torch.Tensor) -> None:
    """Tell torch which tensors are conjugated or negated lazily: its composite code asks."""
    if values.is_neg():
        _torch.set_neg(wrapper, True)
    if values.is_complex() and values.is_conj():
        _torch.set_conj(wrapper, True)


def backing(tensor: VirtualTensor) -> torch.Tensor:
    """The tensor with the values; on `meta` if there are only shapes."""
    if tensor._backing is None:
        tensor._backing = layout_of(tensor).empty()
    return tensor._backing


def adopt(tensor: VirtualTensor, other: VirtualTensor) -> None:
    """Make `tensor` share the values, the shape and the memory of `other`."""
    _torch.set_data(tensor, other)
    tensor._backing = other._backing
    tensor._allocation = other._allocation
    tensor._index = other._index
