"""`nn.Module` and lazy parameters: moving keeps the identity of parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parameter import (
    UninitializedBuffer,
    UninitializedParameter,
    is_lazy,
)
from torch.types import Device

from ....device_naming import TYPE, device
from ....patching import FOR_GOOD
from ...private.torch_tensors import LazyTensor
from ...tensors.tensor import VirtualTensor, become, is_virtual

OfTensor = Callable[[torch.Tensor], torch.Tensor]


def replace_modules() -> None:
    """Let `Module.to` keep the identity of parameters, and lazy ones remember where they go."""
    torch_apply = torch.nn.Module._apply

    @functools.wraps(torch_apply)
    def apply(self: torch.nn.Module, fn: OfTensor, recurse: bool = True) -> torch.nn.Module:
        if recurse:
            for module in self.children():
                module._apply(fn)
        return _apply_here(self, fn, torch_apply)

    FOR_GOOD.set(torch.nn.Module, "_apply", apply)
    _replace_materialize()
    for kind in (UninitializedParameter, UninitializedBuffer):
        _replace_lazy(kind)


def _replace_materialize() -> None:
    torch_materialize = LazyTensor.materialize

    @functools.wraps(torch_materialize)
    def materialize(
        self: torch.Tensor,
        shape: Sequence[int],
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> object:
        device = torch.device(device or _home(self))
        if device.type != TYPE:
            return torch_materialize(self, shape, device, dtype)
        values = torch.empty(shape, device=device, dtype=dtype or self.data.dtype)
        return become(self, values, parameter=isinstance(self, UninitializedParameter))

    LazyTensor.materialize = materialize


def _replace_lazy(kind: type[UninitializedParameter] | type[UninitializedBuffer]) -> None:
    """A tensor without a shape cannot be on a virtual device: it stays on the CPU and knows its."""
    torch_new, torch_deepcopy = kind.__new__, kind.__deepcopy__

    def new(*args: Any, **kwargs: Any) -> torch.Tensor:
        call = inspect.signature(torch_new).bind(*args, **kwargs)
        device = torch.device(call.arguments.get("device") or torch.get_default_device())
        if device.type != TYPE:
            return torch_new(*args, **kwargs)
        call.arguments["device"] = "cpu"
        lazy = torch_new(*call.args, **call.kwargs)
        lazy.__dict__["vgpu_device"] = device
        return lazy

    def deepcopy(self: torch.Tensor, memo: dict[int, object]) -> torch.Tensor:
        twin = torch_deepcopy(self, memo)
        twin.__dict__.update(self.__dict__)
        return twin

    FOR_GOOD.set(kind, "__new__", new)
    FOR_GOOD.set(kind, "__deepcopy__", deepcopy)


def _home(lazy: torch.Tensor) -> torch.device:
    """Where a parameter or buffer without a shape shall be made."""
    return lazy.__dict__.get("vgpu_device") or lazy.data.device


def _apply_here(
    module: torch.nn.Module, fn: OfTensor, torch_apply: Callable[..., torch.nn.Module]
) -> torch.nn.Module:
    """`Module._apply` for a module's own tensors, the virtual ones our way, the rest torch's."""
    moved: dict[int, torch.Tensor] = {}
    for tensor in [*module._parameters.values(), *module._buffers.values()]:
        if tensor is None:
            continue
        with torch.no_grad():
            moved[id(tensor)] = _remember_device(tensor, fn) if is_lazy(tensor) else fn(tensor)
    for name, param in module._parameters.items():
        if param is None or not is_virtual(param, moved[id(param)]):
            continue
        placed = module._parameters[name] = _move_parameter(param, moved[id(param)], fn)
        moved[id(placed)] = placed
    return torch_apply(module, lambda t: moved[id(t)] if id(t) in moved else fn(t), recurse=False)


def _remember_device(lazy: torch.Tensor, fn: OfTensor) -> torch.Tensor:
    """`fn` of a parameter without a shape: it changes its type and where it shall be made."""
    probe = fn(torch.empty(0, dtype=lazy.dtype, device=_home(lazy)))
    if not isinstance(probe, VirtualTensor):
        lazy.__dict__.pop("vgpu_device", None)
        return fn(lazy)
    lazy.__dict__["vgpu_device"] = device(probe.vgpu_index)
    return lazy.to(probe.dtype)


def _move_parameter(
    param: torch.nn.Parameter, moved: torch.Tensor, fn: OfTensor
) -> torch.nn.Parameter:
    grad, param.grad = param.grad, None
    result = become(param, moved, parameter=True)
    if grad is not None:
        with torch.no_grad():
            result.grad = fn(grad)
    return result
