"""`torch.cuda` inside the block: a table of its functions and ours.

What has the same name in `torch.vgpu` is taken from there. The rest of `torch.cuda` says by name
that it is not emulated.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....machines.compute_capability import known_capability
from ...patching import Patches
from ...torch_backend.machine.runtime import current_runtime, running
from ...torch_backend.module import device_module, graph_capture, streams
from .. import lazy_init
from ..device_translation import local_number, number, place, speaking_cuda
from ..refusals import refusal
from .capability import CudaDeviceProperties
from .tensor_types import TENSOR_TYPES, tensor_type

# Functions of torch.vgpu that mean what they mean in torch.cuda: some take a device, others none.
BY_DEVICE = (
    *("current_stream", "default_stream", "get_device_name", "synchronize"),
    *("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"),
    "get_per_process_memory_fraction",
    *("mem_get_info", "memory_stats"),
    *("reset_accumulated_memory_stats", "reset_peak_memory_stats"),
)
SAME = (
    *("_sleep", "empty_cache", "stream"),
    *("initial_seed", "manual_seed", "manual_seed_all", "seed", "seed_all"),
)

# Functions that do not start CUDA.
QUIET = {
    *("device_count", "empty_cache", "get_allocator_backend"),
    *("is_current_stream_capturing", "is_initialized"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all"),
}

_NO_SENSOR = "devices have no such sensor here; `d2lpar.record()` shows what they do, and when"
_SENSORS = ("clock_rate", "memory_usage", "power_draw", "temperature", "utilization")
REMEDIES = dict.fromkeys(_SENSORS, _NO_SENSOR)
REMEDY = "leave it out, or guard it with a condition"

# They concern the build of torch, are classes that other things are tested against, or ask only
# what is replaced elsewhere; `make_graphed_callables` is written in terms of graphs and streams.
# Old names warn that they are, and call the new ones.
LEFT_ALONE = {
    *("CudaError", "DeferredCudaCallError", "check_error", "cudaStatus"),
    *("make_graphed_callables", "memory_snapshot", "memory_summary"),
    *("cudart", "get_gencode_flags", "get_sync_debug_mode", "set_sync_debug_mode"),
    *("max_memory_cached", "memory_cached"),
    *("reset_max_memory_allocated", "reset_max_memory_cached"),
}


def install(patches: Patches) -> None:
    """Replace the functions and classes of `torch.cuda`."""
    ours = functions()
    for name, function in ours.items():
        if hasattr(torch.cuda, name):  # some are younger than the oldest torch
            patches.replace(torch.cuda, name, _speaking(function, starts=name not in QUIET))
    patches.replace(torch.cuda, "_lazy_init", lazy_init.start)
    # Checkpoints of activations keep the random numbers of devices only where CUDA has started.
    patches.set(torch.cuda, "_initialized", True)
    patches.replace(torch.cuda, "_lazy_call", _at_once)
    for name, (make, kind) in CLASSES.items():
        patches.replace_class(torch.cuda, name, _speaking(make), kind)
    for name, dtype in TENSOR_TYPES.items():
        patches.substitute(torch.cuda, name, tensor_type(name, dtype))
    _refuse_others(patches, {*ours, *CLASSES, *TENSOR_TYPES, *LEFT_ALONE})


def _at_once(action: Callable[[], object], **options: object) -> None:
    """What torch keeps until CUDA starts: here nothing is gained by waiting."""
    lazy_init.start()
    action()


def _refuse_others(patches: Patches, known: set[str]) -> None:
    for name in torch.cuda.__all__:
        theirs = getattr(torch.cuda, name)
        if name in known or name.endswith("Storage") or not callable(theirs):
            continue
        refuse = refusal(f"torch.cuda.{name}", REMEDIES.get(name, REMEDY))
        if isinstance(theirs, type):
            patches.replace_class(torch.cuda, name, refuse)
        else:
            patches.replace(torch.cuda, name, refuse)


def namespaces() -> Iterator[dict]:
    """The modules that make up torch.cuda, which hold its functions, too."""
    for name, module in list(sys.modules.items()):
        if name == "torch.cuda" or name.startswith("torch.cuda."):
            yield vars(module)


def functions() -> dict[str, Callable]:
    """Ours, by their names in torch.cuda."""
    table = {name: _by_device(getattr(device_module, name)) for name in BY_DEVICE}
    table |= {name: getattr(device_module, name) for name in SAME}
    return table | {function.__name__: function for function in _FUNCTIONS}


def _speaking(function: Callable, *, starts: bool = True) -> Callable:
    @functools.wraps(function)
    def speak(*args: object, **kwargs: object) -> object:
        if starts:
            lazy_init.start()
        with speaking_cuda():
            return function(*args, **kwargs)

    return speak


def _by_device(function: Callable) -> Callable:
    return lambda device=None, *args, **options: function(place(device), *args, **options)


# --- devices --------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether the program sees a device; asking starts CUDA."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether something has started CUDA in the block."""
    return lazy_init.is_started()


def init() -> None:
    """Start CUDA. Raises RuntimeError if no device is visible."""
    number()


def device_count() -> int:
    """How many devices the program sees."""
    return lazy_init.device_count()


def current_device() -> int:
    """The number of the current device, as the program counts."""
    return local_number()


def set_device(device: object) -> None:
    """Make it the current device; a negative number changes nothing."""
    if not _is_none(device):
        device_module.set_device(place(device))


def _is_none(device: object) -> bool:
    return isinstance(device, int) and device < 0


class Device:
    """`with torch.cuda.device(1):` makes it the current device; None and -1 change nothing."""

    def __init__(self, device: object) -> None:
        no_device = device is None or _is_none(device)
        self.idx = -1 if no_device else local_number(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_device(self.prev_idx)


def _device_of(obj: torch.Tensor) -> Device:
    return Device(obj.device if obj.is_cuda else -1)


def get_device_properties(device: object = None) -> CudaDeviceProperties:
    """What the catalogue knows of the emulated device."""
    found = place(device)
    known, machine = device_module.get_device_properties(found), current_runtime().machine
    return CudaDeviceProperties(
        device_module.get_device_name(found),
        known.total_memory,
        known.multi_processor_count,
        known_capability(machine.accelerators[found.index]),
        number=found.index,
        machine=machine.name,
    )


def get_device_capability(device: object = None) -> tuple[int, int]:
    """The compute capability, such as (8, 0); NotImplementedError if it is not known."""
    found = get_device_properties(device)
    return found.major, found.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether devices compute in bfloat16: from capability 8.0 on, before that by emulation."""
    return including_emulation or get_device_capability() >= (8, 0)


def is_tf32_supported() -> bool:
    """Whether devices have TF32: from capability 8.0 on."""
    return get_device_capability() >= (8, 0)


def can_device_access_peer(device: object, peer_device: object) -> bool:
    """Whether the machine copies between the two without the host."""
    return device_module.can_device_access_peer(place(device), place(peer_device))


def get_arch_list() -> list[str]:
    """The architecture of the emulated devices: what a build for them would have."""
    major, minor = get_device_capability()
    return [f"sm_{major}{minor}"]


# --- streams --------------------------------------------------------------------------------------


def set_stream(stream: torch.Stream | None) -> None:
    """Make it the current stream of its device; None changes nothing."""
    if stream is not None:
        device_module.set_stream(stream)


def is_current_stream_capturing() -> bool:
    """Whether a capture holds the current stream."""
    rt = running()
    return rt is not None and rt.captures.of(rt.current_key) is not None


# --- memory ---------------------------------------------------------------------------------------


def ipc_collect() -> None:
    """Nothing: no other process holds memory of these devices."""


def device_memory_used(device: object = None) -> int:
    """Bytes of the device that are taken: by allocators, of others as well, and CUDA itself."""
    free, total = device_module.mem_get_info(place(device))
    return total - free


def set_per_process_memory_fraction(fraction: float, device: object = None) -> None:
    """Let tensors occupy at most that share, 0 to 1, of the device's memory.

    TypeError and ValueError for others, in torch's words.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    device_module.set_per_process_memory_fraction(fraction, place(device))


def get_allocator_backend() -> str:
    """That of CUDA unless a program asks for another: the caching allocator is emulated."""
    return "native"


# --- random numbers -------------------------------------------------------------------------------


def get_rng_state(device: object = "cuda") -> torch.Tensor:
    """The state of a device's random numbers, as `set_rng_state` takes it."""
    return device_module.get_rng_state(place(device))


def set_rng_state(new_state: torch.Tensor, device: object = "cuda") -> None:
    """Go on with the random numbers that followed `new_state`."""
    device_module.set_rng_state(new_state, place(device))


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all visible devices, in their order."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Set a state for each device, the first for device 0."""
    for i, new_state in enumerate(new_states):
        set_rng_state(new_state, i)


_FUNCTIONS = (
    is_available, is_initialized, init, device_count, current_device, set_device,
    get_device_properties, get_device_capability, is_bf16_supported, is_tf32_supported,
    can_device_access_peer, get_arch_list, set_stream, is_current_stream_capturing,
    graph_capture.graph_pool_handle,
    get_allocator_backend, ipc_collect, device_memory_used,
    set_per_process_memory_fraction,
    get_rng_state, set_rng_state, get_rng_state_all, set_rng_state_all,
)  # fmt: skip


# --- classes --------------------------------------------------------------------------------------


def _stream(*args: Any, **kwargs: Any) -> streams.Stream:
    """A new stream; with `stream_id`, `device_index` and `device_type` of one, that stream."""
    if "stream_id" in kwargs:
        index = place(kwargs["device_index"]).index or 0
        return streams.Stream.existing(index, kwargs["stream_id"])
    return streams.Stream(*args, **kwargs)


# What makes one, and what our own are.
CLASSES: dict[str, tuple[Callable[..., object], type]] = {
    "Stream": (_stream, streams.Stream),
    "Event": (streams.Event, streams.Event),
    "CUDAGraph": (graph_capture.CUDAGraph, graph_capture.CUDAGraph),
    "graph": (graph_capture.capture, graph_capture.CUDAGraph),
    "StreamContext": (device_module.StreamContext, device_module.StreamContext),
    "device": (Device, Device),
    "device_of": (_device_of, Device),
}
