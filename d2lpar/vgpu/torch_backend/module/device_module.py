"""`torch.vgpu`: what `torch.get_device_module("vgpu")` offers, named as in `torch.cuda`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.types import Device

from ....timeline.formatting import bytes_text
from ...device_naming import text
from ...memory.caching_allocator import CachingAllocator, OutOfMemoryError
from ...sim.pricing.multiprocessors import clock_hz
from ..machine.runtime import current_runtime, has_forked, running
from . import autocast, generators
from .streams import Event, Stream, current_stream, default_stream, device_number, set_stream

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


class DeviceProperties(NamedTuple):
    """`total_memory` in bytes; the rates are those of the simulated accelerator.

    `multi_processor_count` is None where the catalogue does not know it.
    """

    name: str
    total_memory: int
    multi_processor_count: int | None
    flops_per_s: dict[str, float]
    memory_bytes_per_s: float
    L2_cache_size: int = 0  # torch's name; 0 if it is not known


# --- devices --------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether there are virtual GPUs here."""
    return running() is not None


def is_initialized() -> bool:
    """The same: they need no start of their own."""
    return running() is not None


def device_count() -> int:
    """How many there are; 0 before the first was asked for."""
    return current_runtime().device_count if running() else 0


def current_device() -> int:
    """The number of the device that "vgpu" means in this thread."""
    return current_runtime().current_device if running() else 0


def set_device(device: Device) -> None:
    """Make `device` the one that "vgpu" without a number means in this thread."""
    current_runtime().current_device = device_number(device)


@contextmanager
def device(device: Device) -> Iterator[None]:
    """Make `device` the current one in the block.

    `tensor.to("vgpu")` and `torch.tensor(…, device="vgpu")` ask no Python which one that is: they
    mean vgpu:0 everywhere. Name the number there.
    """
    outer = current_runtime().current_device
    set_device(device)
    try:
        yield
    finally:
        current_runtime().current_device = outer


def get_device_properties(device: Device = None) -> DeviceProperties:
    """What the machine's description says of `device`."""
    a = current_runtime().machine.accelerators[device_number(device)]
    return DeviceProperties(
        a.name,
        a.memory_bytes,
        a.multiprocessors,
        a.flops_per_s,
        a.memory_bytes_per_s,
        a.l2_bytes or 0,
    )


def get_device_name(device: Device = None) -> str:
    """The name of the simulated accelerator, and "(virtual)"."""
    return f"{get_device_properties(device).name} (virtual)"


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether copies between the two need not go through the host's memory."""
    first, second = device_number(device), device_number(peer_device)
    return first != second and current_runtime().machine.peer is not None


def supported_dtypes(device: Device = None) -> dict[str, set[torch.dtype]]:
    """What `torch.accelerator.get_device_capability` tells."""
    device_number(device)
    floating = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    whole = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
    return {"supported_dtypes": floating | whole | {torch.complex64, torch.complex128}}


def synchronize(device: Device = None) -> None:
    """Make the host wait for everything that `device` was given to do."""
    current_runtime().synchronize(device_number(device))


class StreamContext:
    """A context manager that queues the block's work on a stream; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context manager that queues the block's work on `stream`; None changes nothing."""
    return StreamContext(stream)


# --- memory ---------------------------------------------------------------------------------------


def _memory(device: Device) -> CachingAllocator:
    return current_runtime().memories[device_number(device)]


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors on `device` hold now."""
    return _memory(device).allocated_bytes


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes held at once since the start or the last reset."""
    return _memory(device).peak_bytes


def memory_reserved(device: Device = None) -> int:
    """Bytes that the caching allocator keeps, in segments."""
    return _memory(device).reserved_bytes


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes reserved since the start or the last reset."""
    return _memory(device).peak_reserved_bytes


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the maxima anew, from what is held now."""
    _memory(device).reset_peak()


def reset_max_memory_allocated(device: Device = None) -> None:
    """The older name of `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start the statistics anew that only grow: allocated, freed, num_ooms, num_alloc_retries."""
    _memory(device).statistics.reset_accumulated()


def memory_stats(device: Device = None) -> OrderedDict[str, int]:
    """Statistics of the allocator, by the names of `torch.cuda.memory_stats`."""
    return OrderedDict(_memory(device).stats())


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table of what is allocated and reserved, now and at the peak, and of what was given out."""
    stats = memory_stats(device)
    columns = ("current", "peak", "allocated", "freed")
    lines = [f"{text(device_number(device)):<20}" + "".join(f"{c:>14}" for c in columns)]
    for key, title in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved")):
        cells = [bytes_text(stats[f"{key}.all.{column}"]) for column in columns]
        lines.append(f"{title:<20}" + "".join(f"{cell:>14}" for cell in cells))
    if not abbreviated:
        counts = [stats[f"allocation.all.{column}"] for column in columns]
        lines.append(f"{'allocations':<20}" + "".join(f"{count:>14}" for count in counts))
        lines.append(f"{'out of memory':<20}{stats['num_ooms']:>14}")
    return "\n".join(lines)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of `device`; what the allocator has reserved is not free, nor is what
    CUDA takes itself."""
    memory = _memory(device)
    memory.look_beside()
    return max(0, memory.device_free_bytes), memory.capacity_bytes


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Use that part of the device's memory at most. ValueError unless it is from 0 to 1."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction of a device's memory is from 0 to 1, not {fraction!r}")
    memory = _memory(device)
    memory.limit_bytes = int(fraction * memory.capacity_bytes)


def _sleep(cycles: int) -> None:
    """Let the current stream be busy for so many cycles of a multiprocessor's clock.

    Its kernel has one thread, so all multiprocessors but one compute for other streams meanwhile.
    """
    rt = current_runtime()
    index = rt.current_device
    accelerator = rt.machine.accelerators[index]
    seconds = cycles / clock_hz(accelerator)
    stream = rt.current_key
    work = (stream, "sleep", seconds, 0, 0, rt.machine.host.launch_s)
    engaged_s = seconds / (accelerator.multiprocessors or 1)
    with rt.captures.on(stream):
        rt.host_threads.submit(index, rt.clock.kernel, *work, engaged_s)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """What part of the device's memory may be used."""
    memory = _memory(device)
    return memory.limit_bytes / memory.capacity_bytes


def empty_cache() -> None:
    """Give back, on this program's devices, segments of memory of which nothing is in use."""
    if running():
        rt = current_runtime()
        for index in rt.own_devices:
            rt.memories[index].empty_cache()


# --- random numbers -------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Restart the random numbers of the current device."""
    if running():
        rt = current_runtime()
        rt.restart(rt.sequence(rt.current_device), int(seed))


def manual_seed_all(seed: int) -> None:
    """Restart the random numbers of all devices; `torch.manual_seed` calls this."""
    if running():
        current_runtime().manual_seed(int(seed))


def seed() -> None:
    """Start the random numbers of the current device from a seed of the operating system's."""
    if running():
        generators.DefaultGenerator(current_runtime().current_device).seed()


def seed_all() -> None:
    """Start the random numbers of all devices from one seed of the operating system's."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's random numbers."""
    return current_runtime().sequence(current_runtime().current_device).seed


def get_rng_state(device: Device = None) -> torch.Tensor:
    """Where the random numbers of `device` are, to be set again."""
    return current_runtime().sequence(device_number(device)).state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Go on with random numbers from there: from a state of `get_rng_state`, or one of CUDA's."""
    generators.set_state(current_runtime().sequence(device_number(device)), new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Where the random numbers of all devices are."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Go on with random numbers from there, on all devices."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


# --- what torch itself asks a device module ------------------------------------------------------


_is_in_bad_fork = has_forked


_initialized = True  # torch.utils.checkpoint keeps random states only of modules that say so


def _lazy_init() -> None:
    """Nothing: the virtual machine is running before its first tensor."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may cast to."""
    return list(autocast.DTYPES)


def __getattr__(name: str) -> object:
    if not name.startswith("_") and hasattr(torch.cuda, name):
        raise AttributeError(f"torch.cuda.{name} has no counterpart on virtual GPUs")
    raise AttributeError(f"module 'torch.vgpu' has no attribute {name!r}")
