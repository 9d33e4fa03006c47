"""`torch.vgpu`: what `torch.get_device_module("vgpu")` offers, named as in `torch.cuda`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import NamedTuple

import torch

from . import autocast
from .memory import OutOfMemoryError
from .runtime import running, runtime
from .streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    device_number,
    set_stream,
)

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]


class DeviceProperties(NamedTuple):
    """`total_memory` in bytes; the peak rates are those of the simulated accelerator."""

    name: str
    total_memory: int
    flops_per_s: dict[str, float]
    memory_bytes_per_s: float


# --- devices --------------------------------------------------------------------------------------


def is_available() -> bool:
    return running() is not None


def is_initialized() -> bool:
    return running() is not None


def device_count() -> int:
    return runtime().device_count if running() else 0


def current_device() -> int:
    return runtime().current_device if running() else 0


def set_device(device: object) -> None:
    """Make `device` the one that "vgpu" without a number means in this thread."""
    runtime().current_device = device_number(device)


@contextmanager
def device(device: object):
    """Make `device` the current one in the block.

    `tensor.to("vgpu")` and `torch.tensor(…, device="vgpu")` ask no Python which one that is: they
    mean vgpu:0 everywhere. Name the number there.
    """
    outer = runtime().current_device
    set_device(device)
    try:
        yield
    finally:
        runtime().current_device = outer


def get_device_properties(device: object = None) -> DeviceProperties:
    a = runtime().machine.accelerators[device_number(device)]
    return DeviceProperties(a.name, a.memory_bytes, a.flops_per_s, a.memory_bytes_per_s)


def get_device_name(device: object = None) -> str:
    return f"{get_device_properties(device).name} (virtual)"


def synchronize(device: object = None) -> None:
    """Make the host wait for everything that `device` was given to do."""
    runtime().synchronize(device_number(device))


def stream(stream: torch.Stream | None) -> object:
    """A context manager that queues the block's work on `stream`; None changes nothing."""
    return _no_stream() if stream is None else stream


@contextmanager
def _no_stream():
    yield


# --- memory ---------------------------------------------------------------------------------------


def memory_allocated(device: object = None) -> int:
    """Bytes that tensors on `device` hold now."""
    return runtime().memories[device_number(device)].allocated_bytes


def max_memory_allocated(device: object = None) -> int:
    """The most bytes held at once since the start or the last reset."""
    return runtime().memories[device_number(device)].peak_bytes


def reset_peak_memory_stats(device: object = None) -> None:
    runtime().memories[device_number(device)].reset_peak()


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Free and total bytes of `device`."""
    memory = runtime().memories[device_number(device)]
    return memory.capacity_bytes - memory.allocated_bytes, memory.capacity_bytes


def empty_cache() -> None:
    """Nothing: memory that Python has freed is free at once."""


# --- random numbers -------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Restart the random numbers of the current device."""
    if running():
        runtime().manual_seed(int(seed), runtime().current_device)


def manual_seed_all(seed: int) -> None:
    """Restart the random numbers of all devices; `torch.manual_seed` calls this."""
    if running():
        runtime().manual_seed(int(seed))


def get_rng_state(device: object = None) -> torch.Tensor:
    return runtime().random_state(device_number(device)).clone()


def set_rng_state(new_state: torch.Tensor, device: object = None) -> None:
    runtime().set_random_state(device_number(device), new_state)


# --- what torch itself asks a device module ------------------------------------------------------


def _is_in_bad_fork() -> bool:
    return False


_initialized = True  # torch.utils.checkpoint keeps random states only of modules that say so


def _lazy_init() -> None:
    """Nothing: the virtual machine is running before its first tensor."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    return list(autocast.DTYPES)
