"""What programs call below `torch.cuda`: functions of `torch._C` for devices and streams."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch

from ...patching import Patches, stand_in
from ...races import sync_debug
from ...torch_backend.module import device_module
from ...torch_backend.module.streams import Stream
from ...torch_backend.private import torch_operators, torch_profiler
from .. import lazy_init
from ..device_translation import local_number, place
from ..refusals import refusal

_CUDA = 1  # c10::DeviceType::CUDA

_REMEDY = (
    "it asks CUDA's driver, its allocator or one of its libraries, and here is none of them. Use "
    "what torch.cuda has for it, or leave it out"
)
# How the names of those begin that only keep a setting, or say how torch was built.
_SETTINGS = (
    *("_cuda_isInBadFork", "_cuda_getArchFlags", "_cuda_getCompiledVersion"),
    *("_cuda_getAllocatorBackend", "_cuda_tunableop_is", "_cuda_tunableop_tuning_is"),
    *("_cuda_get_cudnn", "_cuda_set_cudnn", "_cuda_get_conv", "_cuda_set_conv"),
    "_cuda_clearCublasWorkspaces",
)

StreamKey = tuple[int, int, int]


def install(patches: Patches) -> None:
    """Replace them; a build of torch without CUDA has them in the block only."""
    library = torch_operators.LIBRARY
    named = {function.__name__: function for function in _FUNCTIONS}
    for name, ours in named.items():
        if hasattr(library, name):
            patches.replace(library, name, ours)
        else:
            absent = refusal(f"torch._C.{name}", "this build of torch has no CUDA")
            patches.set(library, name, stand_in(absent, ours, patches.holds))
    patches.at_end(lambda: sync_debug.set_mode(sync_debug.IGNORED))
    _refuse_others(patches, {*named})
    c10d = getattr(library, "_distributed_c10d", None)
    if hasattr(c10d, "_hash_tensors"):
        patches.replace(c10d, "_hash_tensors", _hash_tensors)


def _refuse_others(patches: Patches, ours: set[str]) -> None:
    """Without a driver some of them raise what nobody understands, and others end the process."""
    library = torch_operators.LIBRARY
    ours = ours | {name for _, name in torch_profiler.MEMORY_HISTORY.values()}
    for name in dir(library):
        theirs = getattr(library, name)
        if not name.startswith("_cuda_") or isinstance(theirs, type) or name in ours:
            continue
        if not name.startswith(_SETTINGS):
            patches.replace(library, name, refusal(f"torch._C.{name}", _REMEDY))


def _hash_tensors(tensors: Sequence[torch.Tensor]) -> int:
    """A checksum of their bytes. With TORCH_DISTRIBUTED_DEBUG=DETAIL, torch logs it for each object
    that is on its way, to be compared on the other side; its own needs CUDA's driver."""
    parts = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in tensors)
    return zlib.crc32(b"".join(bytes(part.tolist()) for part in parts))


def _cuda_getDevice() -> int:  # noqa: N802, as torch calls it
    return local_number()


def _cuda_getDeviceCount() -> int:  # noqa: N802
    return lazy_init.device_count()


def _cuda_setDevice(device: int) -> None:  # noqa: N802
    device_module.set_device(place(device))


def _cuda_exchangeDevice(device: int) -> int:  # noqa: N802
    """Make it the current device, and say which was; a negative number changes nothing."""
    before = local_number()
    if device >= 0:
        _cuda_setDevice(device)
    return before


def _cuda_maybeExchangeDevice(device: int) -> int:  # noqa: N802
    """The same: there are no contexts of a driver that it could leave unmade."""
    return _cuda_exchangeDevice(device)


def _cuda_synchronize() -> None:
    device_module.synchronize()


def _cuda_getCurrentStream(device: int) -> StreamKey:  # noqa: N802
    return _key(device_module.current_stream(place(device)))


def _cuda_getDefaultStream(device: int) -> StreamKey:  # noqa: N802
    return _key(device_module.default_stream(place(device)))


def _cuda_getCurrentRawStream(device: int) -> int:  # noqa: N802
    return device_module.current_stream(place(device)).cuda_stream


def _cuda_setStream(  # noqa: N802
    stream_id: int = 0, device_index: int = 0, device_type: int = _CUDA
) -> None:
    """Make a stream the current one of its device, and that the current device."""
    device_module.set_device(place(device_index))
    device_module.set_stream(Stream.existing(place(device_index).index or 0, stream_id))


def _cuda_get_sync_debug_mode() -> int:
    return sync_debug.mode()


def _cuda_set_sync_debug_mode(mode: int) -> None:
    sync_debug.set_mode(mode)


def _key(stream: Stream) -> StreamKey:
    return stream.stream_id, stream.device_index, stream.device_type


_FUNCTIONS: tuple[Callable, ...] = (
    _cuda_getDevice, _cuda_getDeviceCount, _cuda_setDevice,
    _cuda_exchangeDevice, _cuda_maybeExchangeDevice,
    _cuda_synchronize, _cuda_getCurrentStream, _cuda_getDefaultStream, _cuda_getCurrentRawStream,
    _cuda_setStream, _cuda_get_sync_debug_mode, _cuda_set_sync_debug_mode,
)  # fmt: skip
