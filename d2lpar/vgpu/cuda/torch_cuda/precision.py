"""Automatic mixed precision: `torch.autocast("cuda")` casts on virtual devices."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...patching import Patches
from ...torch_backend.module import device_module
from ..device_translation import CUDA, VIRTUAL

# They take the type of a device first, or without it mean CUDA.
BY_TYPE = (
    "get_autocast_dtype",
    "is_autocast_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
)

ALL_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def install(patches: Patches) -> None:
    """Replace autocast and what asks for it."""
    for name in BY_TYPE:
        patches.replace(torch, name, _with_device_type(getattr(torch, name)))
    patches.replace(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype(CUDA))
    patches.replace(torch, "set_autocast_gpu_dtype", lambda d: torch.set_autocast_dtype(CUDA, d))
    # CUDA's autocast takes any type of data, where torch asks other devices which they have.
    patches.replace(device_module, "get_amp_supported_dtype", lambda: list(ALL_DTYPES))
    autocast = torch.amp.autocast_mode.autocast
    patches.replace(autocast, "__init__", _autocast(autocast.__init__))


def _with_device_type(theirs: Callable) -> Callable:
    def call(*args: object, **kwargs: object) -> object:
        if "device_type" in kwargs:
            args = (kwargs.pop("device_type"), *args)
        if not (args and isinstance(args[0], str)):
            args = (CUDA, *args)
        return theirs(_kind(args[0]), *args[1:], **kwargs)

    return call


def _autocast(theirs: Callable) -> Callable:
    def __init__(  # noqa: N807
        self: torch.autocast, device_type: object, *args: object, **kwargs: object
    ) -> None:
        theirs(self, _kind(device_type), *args, **kwargs)

    return __init__


def _kind(device_type: object) -> object:
    return VIRTUAL if device_type == CUDA else device_type
