"""CUDA's runtime library as programs meet it: `torch.cuda.cudart()`.

Programs call it to tell a profiler where to begin and to end. As with CUDA, where no profiler is
attached, that does nothing: what devices do is recorded by `d2lpar.record` and by torch.profiler.
"""

from __future__ import annotations

from enum import IntEnum

import torch

from ...patching import Patches
from ...torch_backend.module import device_module
from .. import lazy_init
from ..device_translation import place

_NAME = "_cudart"  # where torch keeps it

# What `cudaGetErrorString` says of errors that programs look for (NVIDIA, CUDA Runtime API).
_ERRORS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    710: "device-side assert triggered",
    719: "unspecified launch failure",
}


def install(patches: Patches) -> None:
    """Let torch.cuda find it."""
    patches.set(torch.cuda, _NAME, CudaRuntime())


class Status(IntEnum):
    """What its functions return."""

    success = 0

    @classmethod
    def _missing_(cls, value: object) -> Status | None:
        """Other numbers are errors whose names nobody has noted here."""
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f"error {value}", value
        return member


class CudaRuntime:
    """What stands for the module; functions have the names that CUDA gives them."""

    cudaError = Status  # noqa: N815

    def cudaProfilerStart(self) -> Status:  # noqa: N802
        """Nothing: no profiler is attached."""
        return Status.success

    def cudaProfilerStop(self) -> Status:  # noqa: N802
        """Nothing: no profiler is attached."""
        return Status.success

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        """What an error's number means."""
        return _ERRORS.get(error, "unrecognized error code")

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802
        """Free and total bytes of a device."""
        lazy_init.start()
        return device_module.mem_get_info(place(device))

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"torch.cuda.cudart().{name} is not emulated: use what torch.cuda has for it"
        )
