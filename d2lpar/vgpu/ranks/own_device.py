"""In a rank, "vgpu" without a number is the rank's own device, as "cuda" is on CUDA."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..device_naming import TYPE, device
from ..torch_backend.runtime import current_runtime
from .rank import here


def to_own_device(theirs: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`Tensor.to`, which takes the device from C++ if it has no number: always the first.

    torch.distributed moves tensors to the type of a mesh so.
    """

    @functools.wraps(theirs)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if getattr(here, "rank", None) is not None:
            if args and _has_no_number(args[0]):
                args = (device(current_runtime().current_device), *args[1:])
            elif _has_no_number(kwargs.get("device")):
                kwargs["device"] = device(current_runtime().current_device)
        return theirs(self, *args, **kwargs)

    return to


def _has_no_number(place: object) -> bool:
    if isinstance(place, torch.device):
        return place.type == TYPE and place.index is None
    return isinstance(place, str) and place == TYPE
