"""`torch.accelerator`, `torch.Stream`, `torch.Event`: they ask `torch.vgpu`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.types import Device

from ...device_naming import TYPE
from ...patching import FOR_GOOD
from ..machine import runtime
from ..module import device_module, streams


def replace_accelerator() -> None:
    """Let what `torch.accelerator` offers be of virtual devices, or raise NotImplementedError."""
    accelerator, module = torch.accelerator, device_module
    replacements: dict[str, object] = {
        "current_accelerator": _current_accelerator,
        "current_device_index": module.current_device,
        "current_device_idx": module.current_device,
        "current_stream": module.current_stream,
        "device_count": module.device_count,
        "device_index": module.device,
        "empty_cache": module.empty_cache,
        "empty_host_cache": lambda: runtime.current_runtime().pinned.empty_cache(),
        "get_device_capability": module.supported_dtypes,
        "get_memory_info": module.mem_get_info,
        "is_available": module.is_available,
        "max_memory_allocated": module.max_memory_allocated,
        "max_memory_reserved": module.max_memory_reserved,
        "memory_allocated": module.memory_allocated,
        "memory_reserved": module.memory_reserved,
        "memory_stats": module.memory_stats,
        "reset_accumulated_memory_stats": module.reset_accumulated_memory_stats,
        "reset_peak_memory_stats": module.reset_peak_memory_stats,
        "set_device_idx": module.set_device,
        "set_device_index": module.set_device,
        "set_stream": module.set_stream,
        "synchronize": module.synchronize,
    }
    for place in (accelerator, getattr(accelerator, "memory", accelerator)):
        for name in [n for n in place.__all__ if hasattr(place, n)]:
            ours = replacements.get(name) or _refused(f"torch.accelerator.{name}")
            FOR_GOOD.set(place, name, ours)
    if hasattr(accelerator, "random"):  # some builds are older
        FOR_GOOD.set(accelerator.random, "initial_seed", _initial_seed)
        for name in ("get_rng_state", "get_rng_state_all"):
            FOR_GOOD.set(accelerator.random, name, getattr(module, name))
    chooser = _make_chooser("Stream", torch.Stream, streams.Stream, streams.Stream)
    FOR_GOOD.set(torch, "Stream", chooser)
    chooser = _make_chooser("Event", torch.Event, streams.Event, _make_event)
    FOR_GOOD.set(torch, "Event", chooser)


def _current_accelerator(check_available: bool = False) -> torch.device | None:
    """Virtual GPUs; None where it is asked whether there are any, and there are none (yet)."""
    return None if check_available and not device_module.is_available() else torch.device(TYPE)


def _initial_seed(device: Device = None) -> int:
    return runtime.current_runtime().sequence(streams.device_number(device)).seed


def _make_event(device: Device, **options: bool) -> streams.Event:
    return streams.Event(**options)


def _refused(name: str) -> Callable[..., object]:
    def refuse(*args: object, **kwargs: object) -> object:
        raise NotImplementedError(f"{name} is not available on virtual GPUs")

    return refuse


def _make_chooser(name: str, theirs: type, ours: type, make: Callable[..., object]) -> type:
    """A class that makes virtual streams (events), yet counts torch's own as its instances."""

    class Chooser(type):
        def __call__(cls, device: Device = None, **kwargs: object) -> object:
            if device is None or isinstance(device, int) or torch.device(device).type == TYPE:
                return make(device, **kwargs)
            return theirs(device, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (theirs, ours))

    return Chooser(name, (), {"__doc__": theirs.__doc__, "__module__": "torch"})
