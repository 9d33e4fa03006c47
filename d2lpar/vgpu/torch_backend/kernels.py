"""The kernels that torch finds by the device: those of operations without a tensor argument."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext

import torch

from ..memory.caching_allocator import Allocation
from ..races import call_sites
from .attention import dispatched as attention
from .machine import host_room, runtime
from .module import graph_capture, streams
from .operations import recurrent
from .operations.dispatch import Dispatcher, compressed_copy
from .private import torch_operators
from .private.op_schema import strided_nested
from .shapes import meta_optimizers
from .tensors.tensor import TensorLayout, VirtualTensor, wrap
from .tensors.unwritten_memory import cleared


def kernels(dispatcher: Dispatcher) -> list[torch.library.Library]:
    """The dispatcher for every operation without a tensor argument; by their names four that C++
    calls by itself; and attention, recurrent networks and fused optimizer steps, which torch has no
    kernel of for every device."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(lambda op, *args, **kwargs: dispatcher(op, args, kwargs), "PrivateUse1")
    everything.fallback(_refuse_compressed, "SparseCsrPrivateUse1")
    everything.fallback(_refuse_nested, "NestedTensorPrivateUse1")
    named = torch.library.Library("aten", "IMPL")
    named.impl("empty.memory_format", _empty, "PrivateUse1")
    named.impl("empty_strided", _empty_strided, "PrivateUse1")
    # RMS norm is one kernel where a device has it, and some operations elsewhere.
    for name, op in (
        ("_copy_from", torch_operators.copy_from),
        ("_fused_rms_norm", torch_operators.rms_norm.default),
    ):
        named.impl(name, functools.partial(_call, dispatcher, op), "PrivateUse1")
    attend = attention.scaled_dot_product_attention
    named.impl("scaled_dot_product_attention", attend, "AutogradPrivateUse1")
    for name, kernel in recurrent.kernels().items():
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            named.impl(name, kernel, key)
    meta_optimizers.register(named)
    return [everything, named]


def _refuse_compressed(op: object, *args: object, **kwargs: object) -> object:
    raise compressed_copy(op)


def _refuse_nested(op: object, *args: object, **kwargs: object) -> object:
    raise strided_nested(op)


def _call(
    dispatcher: Dispatcher, op: torch._ops.OpOverload, *args: object, **kwargs: object
) -> object:
    return dispatcher(op, args, kwargs)


def _empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> VirtualTensor:
    rt = runtime.current_runtime()
    index = streams.device_number(device)
    allocation = _allocate(rt, index, size, dtype) if layout in (None, torch.strided) else None
    make = functools.partial(
        torch.empty, size, dtype=dtype, layout=layout, memory_format=memory_format
    )
    values = make(device="meta") if rt.shape_only else _values(rt, index, make)
    return _noted(wrap(values, index, allocation=allocation))


def _noted(made: VirtualTensor) -> VirtualTensor:
    """A new tensor, of which a graph knows that its capture has made it."""
    graph = graph_capture.capturing()
    if graph is not None:
        graph.note_made(made)
    return made


def _empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> VirtualTensor:
    rt = runtime.current_runtime()
    dtype = dtype or torch.get_default_dtype()
    index = streams.device_number(device)
    allocation = _allocate(rt, index, size, dtype)
    if rt.shape_only:
        return wrap(None, index, layout=TensorLayout(size, stride, 0, dtype), allocation=allocation)
    values = _values(rt, index, functools.partial(torch.empty_strided, size, stride, dtype=dtype))
    return _noted(wrap(values, index, allocation=allocation))


def _values(rt: runtime.Runtime, index: int, make: Callable[..., torch.Tensor]) -> torch.Tensor:
    """New values, for which the device has room."""
    try:
        return cleared(make(device=rt.backing))
    except RuntimeError as error:
        host_room.check(rt, index, error, has_room=True)
        raise


def _allocate(
    rt: runtime.Runtime, index: int, size: list[int], dtype: torch.dtype | None
) -> Allocation:
    """Room on the virtual device, asked for before the memory that does the arithmetic is."""
    nbytes = math.prod(size) * (dtype or torch.get_default_dtype()).itemsize
    with rt.op_details.of_empty(index) if rt.op_details.wanted else nullcontext():
        allocation = rt.memories[index].allocate(nbytes, rt.current_stream(index))
    allocation.made = call_sites.mark()
    return allocation
