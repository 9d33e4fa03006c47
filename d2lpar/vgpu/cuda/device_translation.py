"""Where devices enter torch, "cuda" becomes the virtual device; where they come out, it is "cuda".

A program sees "cuda:1" everywhere: as the device of its tensors and streams, in their text and in
error messages. torch sees "vgpu:1".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import overload

import torch

from .. import torch_backend
from ..device_naming import TYPE as VIRTUAL
from ..device_naming import DeviceNaming
from ..device_naming import device as _device
from ..memory.caching_allocator import OutOfMemoryError
from ..torch_backend.machine.runtime import current_runtime, running
from . import lazy_init
from .own_kernels import remedy_for

CUDA = "cuda"

_OURS = f"{torch_backend.__name__}."  # the package of virtual devices

_OUT_OF_MEMORY = "CUDA out of memory"  # how programs tell this error from others
_EXABYTE = 2**60
_CUDA_NAME = re.compile(r"cuda(?::(\d+))?")
_VIRTUAL_TYPE = re.compile(rf"\b{VIRTUAL}(\w+)Type\b")  # of tensors: "vgpuFloatType"
_VIRTUAL_NAME = re.compile(rf"(?<![/\\])\b{VIRTUAL}\b(?![/\\])")  # and no folder


def cuda(index: int) -> torch.device:
    """The device of that number, as programs see it."""
    return _device(index, CUDA)


@overload
def to_virtual(device: torch.device) -> torch.device: ...
@overload
def to_virtual(device: object) -> object: ...
def to_virtual(device: object) -> object:
    """The virtual device that is meant by "cuda", "cuda:1", 1 or a torch.device.

    Anything else, other kinds of device among it, is returned as it is. RuntimeError for a number
    that no emulated device has.
    """
    if type(device) is str:
        found = _CUDA_NAME.fullmatch(device)
        return device if found is None else _virtual(None if found[1] is None else int(found[1]))
    if isinstance(device, torch.device):
        return _virtual(device.index) if device.type == CUDA else device
    if isinstance(device, int) and not isinstance(device, bool):
        return _virtual(device)
    return device


class CudaNaming(DeviceNaming):
    """Devices are "cuda:0", "cuda:1", …: to d2lpar's own functions, and in its texts."""

    type = CUDA

    def device(self, index: int) -> torch.device:
        """What the program calls the device of that number."""
        return cuda(lazy_init.shown_number(index))

    def parse(self, device: object) -> object:
        """The virtual device that is meant by "cuda:1": see `to_virtual`."""
        return to_virtual(device)

    def saved_on(self, index: int) -> str:
        """What CUDA's own checkpoints say: "cuda:1"."""
        return f"{CUDA}:{lazy_init.shown_number(index)}"

    def choose(self, n: int) -> list[torch.device]:
        """The first `n` of those that the program sees; RuntimeError if there are fewer."""
        return [cuda(i) for i in range(local_number(n - 1) + 1)]

    def start(self) -> None:
        """Start CUDA, which settles what CUDA_VISIBLE_DEVICES shows."""
        lazy_init.start()


def translated(kwargs: dict, caller: FrameType) -> dict:
    """Keyword arguments of a function of torch, whose `device` is translated by `to_virtual`."""
    device = kwargs.get("device")
    if device is None or is_backing(device, caller):
        return kwargs
    return {**kwargs, "device": to_virtual(device)}


def is_backing(device: object, caller: FrameType) -> bool:
    """Whether virtual tensors ask for memory on the real GPU that does their arithmetic.

    False in the workers of a DataLoader: a forked process has no machine.
    """
    rt = running()
    return (
        rt is not None
        and isinstance(device, torch.device)
        and device == rt.backing
        and caller.f_globals.get("__name__", "").startswith(_OURS)
    )


def to_cuda(device: torch.device) -> torch.device:
    """The CUDA device that a program sees for a virtual one; other devices as they are."""
    return cuda(lazy_init.shown_number(device.index or 0)) if device.type == VIRTUAL else device


def number(device: object = None) -> int:
    """The number of the virtual device that is meant by None (the current) or as in `to_virtual`.

    ValueError for a device of another kind, RuntimeError for a number that no device has.
    """
    if isinstance(device, torch.cuda.device):  # the context manager, as torch takes it, too
        device = device.idx
    found = _virtual(None) if device is None else to_virtual(device)
    found = torch.device(found) if isinstance(found, str) else found
    if not isinstance(found, torch.device) or found.type != VIRTUAL:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return found.index or 0


def place(device: object = None) -> torch.device:
    """The virtual device that is meant, as `number` says it."""
    return _device(number(device))


def local_number(device: object = None) -> int:
    """What the program calls the device that is meant; errors are those of `number`."""
    return lazy_init.shown_number(number(device))


@contextmanager
def speaking_cuda() -> Iterator[None]:
    """Let the messages of errors raised in the block call devices "cuda:0"."""
    try:
        yield
    except Exception as error:
        translate(error)
        raise


def translate(error: BaseException) -> None:
    """Let the message of an error call devices "cuda:0", and say what to do."""
    if not (error.args and isinstance(error.args[0], str)):
        return
    text = "\n".join(filter(None, (spoken(error.args[0]), remedy_for(error.args[0]))))
    if isinstance(error, OutOfMemoryError):
        text = _out_of_memory(error)
    error.args = (text, *error.args[1:])


def _out_of_memory(error: OutOfMemoryError) -> str:
    """In the words of CUDA's allocator (c10/cuda/CUDACachingAllocator.cpp), which programs look
    for; what d2lpar knows besides comes after them."""
    if error.asked_bytes >= _EXABYTE:  # a number that was meant otherwise, so no help
        return f"{_OUT_OF_MEMORY}. Tried to allocate more than 1EB memory."
    allowed = "" if error.allowed_bytes is None else f"{_size(error.allowed_bytes)} allowed; "
    return (
        f"{_OUT_OF_MEMORY}. Tried to allocate {_size(error.asked_bytes)}. "
        f"GPU {lazy_init.shown_number(error.device)} has a total capacity of "
        f"{_size(error.capacity_bytes)} of which {_size(error.free_bytes)} is free. "
        f"{allowed}{error.help}"
    )


def _size(nbytes: int) -> str:
    """As CUDA's allocator writes sizes: "2.00 GiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes > size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"


def spoken(text: str) -> str:
    """A text in which virtual devices are called "cuda:0", and types of tensors as CUDA's are."""
    return _VIRTUAL_NAME.sub(CUDA, _VIRTUAL_TYPE.sub(rf"torch.{CUDA}.\1Tensor", text))


def _virtual(index: int | None) -> torch.device:
    lazy_init.start()
    if index is None:
        index = lazy_init.shown_number(current_runtime().current_device)
    count = lazy_init.device_count()
    if not count:
        raise RuntimeError(f"No CUDA GPUs are available: {lazy_init.restriction()}")
    if not 0 <= index < count:
        more = "Ask for more with emulate_cuda(n), or `d2lpar run --gpus n`"
        why = lazy_init.restriction() or more
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: there is no cuda:{index}; there are "
            f"{count} device(s), cuda:0 to cuda:{count - 1}. {why}."
        )
    return _device(lazy_init.virtual_number(index))
