"""The tensor of a virtual device: a wrapper that has the device, around one that has the values.

The wrapper is what torch sees: shape, strides, data type, autograd graph and `device="vgpu:i"`. The
backing tensor lives where the arithmetic is done. Under `shape_only` there is none until needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.nn.parameter import is_lazy

from ... import device_naming
from ...memory.caching_allocator import Allocation
from ...races.sync_debug import called
from ..machine.runtime import current_runtime
from ..private import torch_devices, torch_operators, torch_tensors
from .parameter_kinds import KindOfTensor, class_of_both, kind_of, with_kind
from .virtual_storage import VirtualStorage, storage_of

if TYPE_CHECKING:
    import numpy as np

SomeTensor = TypeVar("SomeTensor", bound=torch.Tensor)

ELSEWHERE, MOVED = "vgpu_elsewhere", "vgpu_moved"  # the attributes that `share` adds
_OURS_AND_TORCHS = {
    *("vgpu_values", "vgpu_allocation", "vgpu_index", "vgpu_device", "_is_param", ELSEWHERE, MOVED)
}


class TensorLayout(NamedTuple):
    """Shape and memory order of a tensor, all that is kept of it under `shape_only`.

    `is_zero` marks zeros without memory, which torch makes for gradients that there are not.
    """

    shape: Sequence[int]
    stride: Sequence[int]
    offset: int
    dtype: torch.dtype
    is_zero: bool = False

    def empty(self) -> torch.Tensor:
        """A tensor on `meta` that is laid out so."""
        span = (
            self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        )
        make = torch_tensors.efficient_zeros if self.is_zero else torch.empty
        flat = make(max(span, 0), dtype=self.dtype, device="meta")
        return flat.as_strided(self.shape, self.stride, self.offset)


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    """Shape and memory order of a tensor, wherever it is."""
    if tensor.layout is not torch.strided:  # a shape is all that sparse formats have in common
        return TensorLayout(
            tensor.shape, torch.empty(tensor.shape, device="meta").stride(), 0, tensor.dtype
        )
    return TensorLayout(
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),  # type: ignore[arg-type]  # no shape is a symbol here
        tensor.dtype,
        torch_tensors.is_zero(tensor),
    )


def laid_out_alone(tensor: torch.Tensor) -> TensorLayout:
    """The same, where it is all that will be kept. NotImplementedError for a sparse tensor."""
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            "shapes do not say how many numbers a sparse tensor has: run it with values, without "
            "--shapes-only, or outside shape_only()"
        )
    return layout_of(tensor)


class VirtualTensor(torch.Tensor, metaclass=KindOfTensor):
    """A tensor on `vgpu:i`. Made by torch's own functions, never by hand.

    `vgpu_values` is the tensor with the values (None: none was needed yet), `vgpu_allocation` its
    share of the device's memory, `vgpu_index` the number of the device.
    """

    vgpu_kind = torch.Tensor  # what it is to programs
    vgpu_values: torch.Tensor | None
    vgpu_allocation: Allocation
    vgpu_index: int
    dispatcher: Callable[..., object]  # set by `dispatch`, which stands above this module

    __torch_function__ = torch_tensors.no_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub forgets two arguments
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if len(types) > 1 and not all(issubclass(kind, VirtualTensor) for kind in types):
            # Another library's kind of tensor, which has virtual ones within.
            return NotImplemented
        return VirtualTensor.dispatcher(func, args, kwargs or {})

    # torch's stubs take what these four answer for attributes.
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device, as programs call it."""
        return device_naming.naming().device(self.vgpu_index)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether programs call its device "cuda"."""
        return device_naming.naming().type == "cuda"

    # torch's own setter would move the shape and leave the values behind.
    @property
    def data(self) -> torch.Tensor:
        """The tensor apart from its graph."""
        return torch_tensors.get_data(self)

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if isinstance(other, VirtualTensor):
            apart = other.detach()  # which other layouts of either do not touch
            assert isinstance(apart, VirtualTensor)
            adopt(self, apart)
        elif self.grad_fn is not None and not other.numel():
            # Pipelines free an output so, whose graph they keep. It stays in the graph, empty, and
            # stays on its device, where on CUDA it would be a tensor of the host without elements.
            adopt(self, _nothing(self.vgpu_index, self.dtype))
        else:
            share(self, other)

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """That of the values: the wrapper is always strided."""
        return torch.strided if self.vgpu_values is None else self.vgpu_values.layout

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        """Whether it is in coordinate format."""
        return self.layout is torch.sparse_coo

    def type(self, *args: Any, **options: Any) -> Any:
        """`Tensor.type`: the name of the type, or a tensor of another one."""
        found = super().type(*args, **options)
        if isinstance(found, str) and self.is_sparse:
            package, _, name = found.rpartition(".")
            return f"{package}.sparse.{name}"
        return found

    def to_dense(
        self, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None
    ) -> torch.Tensor:
        """`Tensor.to_dense`: the tensor itself if it is."""
        if self.layout is torch.strided:
            return self if dtype is None else self.to(dtype)
        return torch_operators.to_dense(self, dtype, masked_grad)

    def coalesce(self) -> torch.Tensor:
        """`Tensor.coalesce`: the tensor itself if it is."""
        return self if backing(self).is_coalesced() else torch_operators.coalesce(self)

    def data_ptr(self) -> int:
        """The address of the values, which tells apart what shares memory and what does not."""
        if self.vgpu_values is not None and not self.vgpu_values.is_meta:
            return self.vgpu_values.data_ptr()
        return id(self.vgpu_allocation) + int(self.storage_offset()) * self.element_size()

    def get_device(self) -> int:
        """The number of the device, as the program counts them: it may see but some."""
        return int(device_naming.naming().device(self.vgpu_index).index)

    def untyped_storage(self) -> VirtualStorage:
        """The storage of the values, which takes memory of the device."""
        self.vgpu_allocation.materialize()
        return storage_of(backing(self), self.vgpu_allocation)

    def record_stream(self, stream: torch.Stream) -> None:
        """Its memory, once freed, waits for what that stream has queued by then."""
        allocation = self.vgpu_allocation
        device = torch_devices.device_of_stream(stream)
        if device == self.vgpu_index and stream.stream_id != allocation.stream:
            allocation.recorded = (allocation.recorded or set()) | {stream.stream_id}

    def tolist(self) -> list[Any]:
        """The values in nested lists; the host waits for them."""
        with called("tolist"):
            return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values, copied to the host. TypeError without `force`, as on CUDA."""
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

    @property
    def __cuda_array_interface__(self) -> object:
        return self.__dlpack__()  # not AttributeError: who asks by hasattr() shall hear of it

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        marks = [f"device='{self.device}'"]
        if self.grad_fn is not None:
            marks.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
        elif self.requires_grad:
            marks.append("requires_grad=True")
        with called("print"):
            text = f"{repr(self.detach().cpu())[:-1]}, {', '.join(marks)})"
        return f"Parameter containing:\n{text}" if is_parameter(self) else text


for _name in ("__module__", "__name__", "__qualname__"):
    setattr(VirtualTensor, _name, getattr(torch.Tensor, _name))
VirtualParameter = class_of_both(torch.nn.Parameter, VirtualTensor)


def wrap(
    values: torch.Tensor | None,
    index: int,
    *,
    layout: TensorLayout | None = None,
    allocation: Allocation | None = None,
    stream: int | None = None,
    sources: tuple[Allocation, ...] | None = None,
) -> VirtualTensor:
    """A tensor on `vgpu:index` with these values; None makes one that has but a layout.

    Memory that it needs is that of `stream`, by default the current one. With `sources` it is
    deferred: see `Allocation`.
    """
    if layout is None:
        assert values is not None, "a tensor has values or a layout"
        if values.layout is torch.strided and not torch_tensors.is_zero(values):
            wrapper = _twin(values, index)
        else:
            layout = layout_of(values)
    if layout is not None:
        wrapper = _laid_out(layout, index)
    if values is not None and (values.is_neg() or values.is_complex()):
        _mirror_bits(wrapper, values)
    if allocation is None:
        rt = current_runtime()
        size = 0 if layout is not None and layout.is_zero else _size_bytes(wrapper, values)
        stream = rt.current_stream(index) if stream is None else stream
        allocation = rt.memories[index].allocate(size if sources is None else 0, stream)
        if sources is not None:
            allocation.defer(size, sources)
    wrapper.vgpu_values = values
    wrapper.vgpu_allocation = allocation
    wrapper.vgpu_index = index
    return wrapper


def _twin(values: torch.Tensor, index: int) -> VirtualTensor:
    """A wrapper that is laid out as the values are, made in the quickest way: most come so."""
    return torch_tensors.make_wrapper_subclass(
        VirtualTensor,
        values.shape,
        values.stride(),
        values.storage_offset(),
        None,
        values.dtype,
        torch.strided,
        device_naming.device(index),
    )


def _laid_out(layout: TensorLayout, index: int) -> VirtualTensor:
    shape, stride, offset, dtype, is_zero = layout
    return torch_tensors.make_wrapper_subclass(
        VirtualTensor,
        shape,
        stride,
        offset,
        dtype=dtype,
        device=device_naming.device(index),
        # torch's own code asks for it
        _extra_dispatch_keys=torch_tensors.ZERO_KEY if is_zero else None,
    )


def _nothing(index: int, dtype: torch.dtype) -> VirtualTensor:
    """A tensor on `vgpu:index` without elements."""
    return wrap(None, index, layout=TensorLayout((0,), (1,), 0, dtype))


def _size_bytes(wrapper: VirtualTensor, values: torch.Tensor | None) -> int:
    if values is None or values.layout is torch.strided:
        return wrapper.nbytes
    return sum(part.numel() * part.element_size() for part in torch_tensors.sparse_parts(values))


def _mirror_bits(wrapper: VirtualTensor, values: torch.Tensor) -> None:
    """Tell torch which tensors are conjugated or negated lazily: its composite code asks."""
    if values.is_neg():
        torch_tensors.set_neg(wrapper, True)
    if values.is_conj():
        torch_tensors.set_conj(wrapper, True)


def separate(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor that counts the writes to it by itself, and is a view of none."""
    if not isinstance(tensor, VirtualTensor):
        return tensor
    values = None if tensor.vgpu_values is None else tensor.vgpu_values.detach()
    return wrap(
        values, tensor.vgpu_index, layout=layout_of(tensor), allocation=tensor.vgpu_allocation
    )


def is_virtual(*tensors: torch.Tensor) -> bool:
    """Whether one of them is on a virtual device."""
    return any(isinstance(tensor, VirtualTensor) for tensor in tensors)


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether torch has made a parameter of it, which virtual tensors become by a mark."""
    return getattr(tensor, "_is_param", False)


def attributes(tensor: torch.Tensor) -> dict[str, object]:
    """What a program has attached to a tensor."""
    return {name: value for name, value in tensor.__dict__.items() if name not in _OURS_AND_TORCHS}


def backing(tensor: VirtualTensor) -> torch.Tensor:
    """The tensor with the values; on `meta` if there are only shapes."""
    if tensor.vgpu_values is None:
        tensor.vgpu_values = layout_of(tensor).empty()
    return tensor.vgpu_values


def check_allocated(tensor: VirtualTensor) -> None:
    """RuntimeError, in torch's words, for a tensor whose storage was freed by `resize_(0)`: the
    kernels of the CPU that do the arithmetic would end the process."""
    allocation = tensor.vgpu_allocation
    if allocation.requested_bytes or allocation.deferred_bytes or not tensor.numel():
        return
    if tensor.layout is torch.strided and not torch_tensors.is_zero(tensor):
        raise RuntimeError(
            "The tensor has a non-zero number of elements, but its data is not allocated: its "
            f"storage on {tensor.device} was resized to 0 bytes. Sharded parameters are so outside "
            "the forward and backward passes of their module"
        )


def adopt(tensor: VirtualTensor, other: VirtualTensor) -> None:
    """Make `tensor` share the values, the shape and the memory of `other`."""
    torch_tensors.set_data(tensor, other)
    tensor.vgpu_values = other.vgpu_values
    tensor.vgpu_allocation = other.vgpu_allocation
    tensor.vgpu_index = other.vgpu_index


def become(tensor: SomeTensor, values: torch.Tensor, *, parameter: bool) -> SomeTensor:
    """Give `tensor` the values (and with them the device) of another, as `tensor.data = …` does on
    CUDA: optimizers, hooks and other modules that know it go on to."""
    if values is tensor:
        return tensor
    if parameter:
        values = with_kind(torch.nn.Parameter(values, tensor.requires_grad), kind_of(tensor))
    if not (values.is_inference() or is_lazy(tensor)):
        torch_tensors.set_version(values, torch_tensors.version(tensor))
    for name in attributes(values).keys() - attributes(tensor).keys():
        del values.__dict__[name]
    values.__dict__.update(attributes(tensor))
    torch_tensors.take_hooks(values, tensor)
    torch_tensors.exchange(tensor, values)
    return tensor


def kept_elsewhere(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a tensor was before its data moved to the host, or from there: see `share`."""
    return tensor.__dict__.get(ELSEWHERE)


def moved(grad: torch.Tensor) -> torch.Tensor:
    """What a parameter's gradient is now: the parameter holds what it was before its data moved."""
    return grad.__dict__.get(MOVED, grad)


def forget_moved(grad: torch.Tensor | None) -> None:
    """Let go of that with the gradient: the two hold each other, and memory of a device."""
    if grad is not None:
        grad.__dict__.pop(MOVED, None)


def share(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Let `tensor` have the memory of a tensor elsewhere, as `tensor.data = other` does on CUDA.

    What it is to a graph, that of the host and that of the device are two things. The one that it
    is not is kept, empty: when its data return, as parameters do that are sharded and offloaded,
    graphs of that time know it again. RuntimeError, in torch's words, for integers where the tensor
    requires gradients.
    """
    if tensor.requires_grad and not (other.is_floating_point() or other.is_complex()):
        raise RuntimeError(
            "data set to a tensor that requires gradients must be floating point or complex dtype"
        )
    is_parameter, kept = isinstance(tensor, torch.nn.Parameter), kept_elsewhere(tensor)
    if kept is None or isinstance(kept, VirtualTensor) != isinstance(other, VirtualTensor):
        kept = torch_tensors.get_data(other)  # whose writes are counted apart from those of `other`
        if is_parameter:
            kept = with_kind(torch.nn.Parameter(kept, False), kind_of(tensor))
    else:
        kept.data = other
    forget_moved(kept)
    become(tensor, kept.requires_grad_(tensor.requires_grad), parameter=False)
    if isinstance(kept, VirtualTensor):
        adopt(kept, _nothing(kept.vgpu_index, kept.dtype))
    else:
        torch_tensors.set_data(kept, torch.empty(0, dtype=kept.dtype))
    tensor.__dict__[ELSEWHERE] = kept
    if not tensor.requires_grad and torch_tensors.is_held(kept):
        kept.__dict__[MOVED] = tensor
