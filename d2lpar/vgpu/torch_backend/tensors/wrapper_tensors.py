"""Where tensors are that wrap virtual ones, such as quantised ones, as programs call the device.

torch answers for them in C++, where the device is always "vgpu".
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ... import device_naming

_DEVICE: Any = torch.Tensor.device


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of what a tensor wraps, as programs call it."""
    found: torch.device = _DEVICE.__get__(tensor)
    virtual = found.type == device_naming.TYPE
    return device_naming.naming().device(found.index) if virtual else found


def is_cuda(tensor: torch.Tensor) -> bool:
    """Whether programs call its device "cuda"."""
    return device_of(tensor).type == "cuda"


def wraps_virtual(*tensors: torch.Tensor) -> bool:
    """Whether one of them is no virtual tensor itself, and on a virtual device."""
    others = [t for t in tensors if is_traceable_wrapper_subclass(t)]
    return any(_DEVICE.__get__(tensor).type == device_naming.TYPE for tensor in others)


def answer_for(kind: Any) -> None:
    """Let the tensors of a class say so, unless it answers itself."""
    if kind.device is _DEVICE:
        kind.device, kind.is_cuda = property(device_of), property(is_cuda)
