"""Carrying out operations on virtual devices: real arithmetic on the backing, modelled time.

Every operation that touches a virtual tensor arrives here. It is run on the backing tensors, its
outputs are wrapped, and its cost is put on the clock. Under `shape_only` only shapes are computed.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

from . import copies
from .cost import Cost, cost_of
from .plans import Plan, aten, plan_of
from .runtime import Runtime, runtime
from .shapes import Argument, Inferred, infer
from .tensor import Layout, VirtualTensor, adopt, backing, wrap

CACHED_SIGNATURES = 20_000


class Dispatcher:
    """Runs operations; keeps what it has learnt of their costs and shapes."""

    def __init__(self) -> None:
        self._special = {
            aten._to_copy.default: lambda rt, args, kwargs: copies.to_copy(args[0], **kwargs),
            aten.copy_.default: lambda rt, args, kwargs: copies.copy_(*args, **kwargs),
            aten._copy_from.default: _copy_from,
            aten._local_scalar_dense.default: _item,
            aten.record_stream.default: lambda rt, args, kwargs: None,
            aten._pin_memory.default: lambda rt, args, kwargs: rt.pinned.pin(args[0]),
        }
        self._costs: dict[tuple, Cost] = {}
        self._inferred: dict[tuple, Inferred] = {}

    def __call__(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> object:
        rt = runtime()
        special = self._special.get(func)
        if special is not None:
            return special(rt, args, kwargs)
        plan = plan_of(func)
        if plan.decomposes:
            return func.decompose(*args, **kwargs)
        call = _Call(rt, plan, args, kwargs)
        if call.index is None:  # all of it happens on the host
            return func(*call.args, **call.kwargs)
        if rt.shape_only:
            result = self._infer(rt, func, call)
        else:
            result = self._compute(rt, func, call)
        return call.wrap(result)

    def _compute(self, rt: Runtime, func: torch._ops.OpOverload, call: _Call) -> object:
        """Really compute; the cost is worked out once a signature."""
        if func is aten._sparse_mm_reduce_impl.default:
            # Its CPU kernel keeps what backward needs only if its input wants a gradient.
            call.args[0] = call.args[0].detach().requires_grad_()
        with rt.random_numbers(call.index) if call.plan.draws_random else nullcontext():
            result = func(*call.args, **call.kwargs)
        if call.plan.mutates:
            call.refresh()
        cost = None
        if call.plan.launches:
            key = (func, *call.key)
            cost = self._costs.get(key)
            if cost is None:
                cost = cost_of(func, call.args, call.kwargs, result)
                _remember(self._costs, key, cost)
        _account(rt, call, cost)
        return result

    def _infer(self, rt: Runtime, func: torch._ops.OpOverload, call: _Call) -> object:
        """Compute shapes only, once a signature."""
        key = (func, *call.key)
        known = self._inferred.get(key)
        if known is None:
            known = infer(func, call.args, call.kwargs)
            _remember(self._inferred, key, known)
        for number, layout in known.reshaped.items():
            adopt(call.tensors[number], wrap(None, call.index, layout=layout))
        _account(rt, call, known.cost if call.plan.launches else None)
        return known.outputs


class _Call:
    """One operation's arguments, taken apart.

    `args` and `kwargs` hold backing tensors (under shape_only the virtual ones), `tensors` the
    virtual ones in order, `key` what shapes and cost depend on, `index` the device, or None.
    """

    __slots__ = ("_host_tensor", "_shape_only", "args", "index", "key", "kwargs", "plan", "tensors")

    def __init__(self, rt: Runtime, plan: Plan, args: tuple, kwargs: dict) -> None:
        self.plan = plan
        self.index: int | None = None
        self.tensors: list[VirtualTensor] = []
        self.key: list[object] = []
        self._shape_only = rt.shape_only
        self._host_tensor: torch.Tensor | None = None
        self.args = [self._unwrap(a) for a in args]
        self.kwargs = {name: self._unwrap(value) for name, value in kwargs.items()}
        self._check_host_tensor()
        if kwargs.get("device") is not None:
            self._redirect(rt, kwargs["device"])

    def _unwrap(self, value: object) -> object:
        if isinstance(value, VirtualTensor):
            return self._unwrap_virtual(value)
        if isinstance(value, torch.Tensor):
            if value.dim():
                self._host_tensor = value
            self.key += (value.shape, value.dtype)
            return value
        if isinstance(value, (list, tuple)):
            self.key.append(len(value))
            return [self._unwrap(v) for v in value]
        self.key.append(float if isinstance(value, float) else value)
        return value

    def _unwrap_virtual(self, value: VirtualTensor) -> torch.Tensor:
        if self.index is None:
            self.index = value._index
        elif self.index != value._index:
            raise _mixed_devices(f"vgpu:{self.index}", value.device)
        self.tensors.append(value)
        if self._shape_only:
            self.key += (value.shape, value.stride(), value.dtype)
            return value
        self.key += (value.shape, value.dtype)
        return backing(value)

    def _check_host_tensor(self) -> None:
        """Scalars of the host may join in, as on CUDA; larger tensors may not."""
        host = self._host_tensor
        if host is not None and self.index is not None and not self.plan.takes_host_tensors:
            raise _mixed_devices(f"vgpu:{self.index}", host.device)

    def _redirect(self, rt: Runtime, device: torch.device) -> None:
        """Make what is created on a virtual device where the arithmetic is."""
        if device.type != "vgpu":
            self.index = None
            return
        index = rt.current_device if device.index is None else device.index
        self.index = rt.check_index(index)
        self.kwargs["device"] = rt.backing

    def refresh(self) -> None:
        """Follow an operation that changed the shape of an argument in place."""
        for tensor in self.tensors:
            values = backing(tensor)
            if tensor.shape != values.shape or tensor.stride() != values.stride():
                adopt(tensor, wrap(values, tensor._index))

    def wrap(self, value: object) -> object:
        """What the caller gets: outputs as virtual tensors, arguments as the objects they are."""
        mine = {id(t._backing): t for t in self.tensors} if self.plan.mutates else {}
        shared = self.tensors[0]._allocation if self.plan.is_view and self.tensors else None
        return self._wrap(value, mine, shared)

    def _wrap(self, value: object, mine: dict, shared: object) -> object:
        if isinstance(value, torch.Tensor):
            known = mine.get(id(value))
            return wrap(value, self.index, allocation=shared) if known is None else known
        if isinstance(value, Layout):
            return wrap(None, self.index, layout=value, allocation=shared)
        if isinstance(value, Argument):
            return self.tensors[value.number]
        if isinstance(value, (list, tuple)):
            return [self._wrap(v, mine, shared) for v in value]
        return value


def _account(rt: Runtime, call: _Call, cost: Cost | None) -> None:
    """Put an operation on the clock; without a kernel (no cost) it takes but the host's time."""
    index = call.index
    if cost is None:
        rt.lanes.submit(index, rt.clock.dispatch, rt.machine.host.view_s, call.plan.name)
        return
    stream = (index, rt.current_stream(index))
    seconds = cost.seconds(rt.machine.accelerators[index])
    args = (stream, call.plan.name, seconds, cost.bytes, cost.flops)
    rt.lanes.submit(index, rt.clock.kernel, *args)
    if call.plan.waits:
        rt.synchronize_stream(index, stream[1], call.plan.name)


def _item(rt: Runtime, args: tuple, kwargs: dict) -> object:
    """`tensor.item()`: the host waits for the value, and for its way over the link."""
    (tensor,) = args
    index = tensor._index
    stream = (index, rt.current_stream(index))
    rt.lanes.submit(index, rt.clock.copy, stream, None, tensor.element_size(), "item")
    rt.synchronize_stream(index, stream[1], "item")
    values = backing(tensor)
    if rt.shape_only or values.is_meta:
        return copies.unknown(values.shape, values.dtype).item()
    return values.item()


def _copy_from(rt: Runtime, args: tuple, kwargs: dict) -> torch.Tensor:
    source, target, *rest = args
    return copies.copy_(target, source, *rest, **kwargs)


def _mixed_devices(first: object, second: object) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!"
    )


def _remember(cache: dict, key: tuple, value: object) -> None:
    """Keep a cache from growing without end, where shapes keep changing."""
    if len(cache) >= CACHED_SIGNATURES:
        cache.clear()
    cache[key] = value

