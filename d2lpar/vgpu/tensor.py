"""The tensor of a virtual device: a wrapper that has the device, around one that has the values.

The wrapper is what torch sees: shape, strides, data type, autograd graph and `device="vgpu:i"`. The
backing tensor lives where the arithmetic is done. Under `shape_only` there is none until needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from . import _torch
from .memory import Allocation
from .runtime import runtime
from .syncs import called

_OURS_AND_TORCHS = {"_backing", "_allocation", "_index", "_virtual_device", "_is_param"}


class Layout(NamedTuple):
    """Shape and memory order of a tensor, all that is kept of it under `shape_only`."""

    shape: Sequence[int]
    stride: Sequence[int]
    offset: int
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        span = (
            self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        )
        flat = torch.empty(max(span, 0), dtype=self.dtype, device="meta")
        return flat.as_strided(self.shape, self.stride, self.offset)


def layout_of(tensor: torch.Tensor) -> Layout:
    if tensor.layout is not torch.strided:  # a shape is all that sparse formats have in common
        return Layout(
            tensor.shape, torch.empty(tensor.shape, device="meta").stride(), 0, tensor.dtype
        )
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
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
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
        adopt(self, other.detach())  # which other layouts of either do not touch

    @property
    def layout(self) -> torch.layout:
        return torch.strided if self._backing is None else self._backing.layout

    @property
    def is_sparse(self) -> bool:
        return self.layout is torch.sparse_coo

    def to_dense(
        self, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None
    ) -> torch.Tensor:
        if self.layout is torch.strided:
            return self if dtype is None else self.to(dtype)
        return torch.ops.aten._to_dense(self, dtype, masked_grad)

    def coalesce(self) -> torch.Tensor:
        return self if backing(self).is_coalesced() else torch.ops.aten._coalesce(self)

    def data_ptr(self) -> int:
        """The address of the values, which tells apart what shares memory and what does not."""
        if self._backing is not None and not self._backing.is_meta:
            return self._backing.data_ptr()
        return id(self._allocation) + self.storage_offset() * self.element_size()

    def untyped_storage(self) -> torch.UntypedStorage:
        return backing(self).untyped_storage()

    def tolist(self) -> object:
        with called("tolist"):
            return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> object:
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        with called("numpy"):
            return self.detach().cpu().numpy(force=True)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        return self.numpy()

    def __dlpack__(self, **options: object) -> object:
        raise BufferError(
            f"other libraries cannot use the memory of {self.device}, which is no real GPU: copy "
            "the tensor to host memory first, with Tensor.cpu()"
        )

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        marks = [f"device='{self.device}'"]
        if self.grad_fn is not None:
            marks.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
        elif self.requires_grad:
            marks.append("requires_grad=True")
        with called("print"):
            text = f"{repr(self.detach().cpu())[:-1]}, {', '.join(marks)})"
        return f"Parameter containing:\n{text}" if is_parameter(self) else text


def wrap(
    values: torch.Tensor | None,
    index: int,
    *,
    layout: Layout | None = None,
    allocation: Allocation | None = None,
    stream: int | None = None,
) -> VirtualTensor:
    """A tensor on `vgpu:index` with these values; None makes one that has but a layout.

    Memory that it needs is that of `stream`, by default the current one.
    """
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
        rt = runtime()
        size = _size_bytes(wrapper, values)
        stream = rt.current_stream(index) if stream is None else stream
        allocation = rt.memories[index].allocate(size, stream)
    wrapper._backing = values
    wrapper._allocation = allocation
    wrapper._index = index
    return wrapper


def _size_bytes(wrapper: VirtualTensor, values: torch.Tensor | None) -> int:
    if values is None or values.layout is torch.strided:
        return wrapper.numel() * wrapper.element_size()
    return sum(part.numel() * part.element_size() for part in _parts(values))


def _parts(sparse: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that make up a sparse one."""
    if sparse.layout is torch.sparse_coo:
        return [sparse._indices(), sparse._values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    if sparse.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]
    return [sparse]  # a layout of another library, such as mkldnn's


def _mirror_bits(wrapper: VirtualTensor, values: torch.Tensor) -> None:
    """Tell torch which tensors are conjugated or negated lazily: its composite code asks."""
    if values.is_neg():
        _torch.set_neg(wrapper, True)
    if values.is_complex() and values.is_conj():
        _torch.set_conj(wrapper, True)


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether torch has made a parameter of it, which virtual tensors become by a mark."""
    return getattr(tensor, "_is_param", False)


def attributes(tensor: torch.Tensor) -> dict[str, object]:
    """What a program has attached to a tensor."""
    return {name: value for name, value in tensor.__dict__.items() if name not in _OURS_AND_TORCHS}


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
