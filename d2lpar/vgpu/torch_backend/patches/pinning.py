"""Page-locked memory: of the virtual machine's host, and made by functions that make tensors."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable

import torch
import torch.utils.data.dataloader

from ...memory import pinned
from ...patching import FOR_GOOD
from ..machine import runtime
from .lists import of_lists
from .threads import SameMachineThread


def replace_pinning() -> None:
    """Let tensors, functions that make them and data loaders page-lock on the virtual machine."""
    _replace_factories()
    loader = sys.modules["torch.utils.data.dataloader"]
    threads = types.SimpleNamespace(Thread=_PinningThread, Event=threading.Event)
    FOR_GOOD.set(loader, "threading", threads)
    torch_pin, torch_is_pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned

    @functools.wraps(torch_pin)
    def pin_memory(self: torch.Tensor, device: object = None) -> torch.Tensor:
        return runtime.current_runtime().pinned.pin(self)

    @functools.wraps(torch_is_pinned)
    def is_pinned(self: torch.Tensor, device: object = None) -> bool:
        rt = runtime.running()
        return rt is not None and self.device.type == "cpu" and self in rt.pinned

    FOR_GOOD.set(torch.Tensor, "pin_memory", pin_memory)
    FOR_GOOD.set(torch.Tensor, "is_pinned", is_pinned)


class _PinningThread(SameMachineThread):
    """A data loader's thread that pins batches."""

    def run(self) -> None:
        with pinned.unpaid():
            super().run()


# Functions that make tensors and can make them in page-locked memory: torch asks a C++ allocator of
# the device for that, which a Python backend cannot supply.
_FACTORIES = (
    *("arange", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "full"),
    *("full_like", "linspace", "logspace", "ones", "ones_like", "rand", "rand_like", "randint"),
    *("randint_like", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like"),
)
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


def _replace_factories() -> None:
    # What torch knows by the functions themselves: those that obey `with torch.device(…)`, and
    # those that scripts may call.
    torch.utils._device._device_constructors()
    torch.tensor, torch.as_tensor = of_lists(torch.tensor), of_lists(torch.as_tensor)
    torch.jit._builtins._register_builtin(torch.as_tensor, "aten::as_tensor")
    for name in _FACTORIES:
        function = _pinning(getattr(torch, name))
        function.__module__, function.__qualname__ = "torch", name
        FOR_GOOD.set(torch, name, function)
        torch.jit._builtins._register_builtin(function, f"aten::{name}")
    for name in _METHODS:
        FOR_GOOD.set(torch.Tensor, name, _pinning(getattr(torch.Tensor, name)))


def _pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: object, **kwargs: object) -> torch.Tensor:
        if not kwargs.pop("pin_memory", False):
            return factory(*args, **kwargs)
        tensor = factory(*args, **kwargs)
        if tensor.device.type != "cpu":
            raise RuntimeError(f"only dense CPU tensors can be pinned, not one on {tensor.device}")
        return runtime.current_runtime().pinned.lock(tensor)

    return make
