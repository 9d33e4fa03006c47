"""A function mode: it sees every call of torch's API in its thread, whatever name it goes by.

It does not see the calls that torch's own Python functions make inside, nor those of a backward
pass; for these the functions that make or move tensors are replaced, too: see `tensors`.
"""

from __future__ import annotations

import sys

import torch
from torch.overrides import TorchFunctionMode

from . import lazy_init
from .device_translation import outward, translate, translated


class CudaMode(TorchFunctionMode):
    """Translates devices on the way into torch, and the messages of errors on the way out."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not lazy_init.emulated_count():  # in a thread that the block has left behind
            return func(*args, **(kwargs or {}))
        if func is torch.device:
            return _make_device(*args, **(kwargs or {}))
        if kwargs and "device" in kwargs and not isinstance(func, torch._ops.OperatorBase):
            kwargs = translated(kwargs, sys._getframe(1))
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            translate(error)
            raise


def _make_device(*args: object, **kwargs: object) -> torch.device:
    """`torch.device(1)` means the accelerator, which torch calls by its own name."""
    device = torch.device(*args, **kwargs)
    return outward(device) if args and isinstance(args[0], int) else device
