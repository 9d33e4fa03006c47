"""A device without a number is the rank's own, also where torch asks nobody which one is current.

Most functions of torch ask; `Tensor.to` and `torch.tensor` would take device 0. DTensor, which
knows a mesh's kind of device only, calls them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...device_naming import TYPE, device
from ...torch_backend.machine.runtime import current_runtime


def _numbered(place: object) -> object:
    if place == TYPE or (
        isinstance(place, torch.device) and place.type == TYPE and place.index is None
    ):
        return device(current_runtime().current_device)
    return place


def moving(theirs: Callable) -> Callable:
    """`Tensor.to`, which may be told the device first."""
    move = making(theirs)

    def to(self: torch.Tensor, *args: object, **kwargs: object) -> object:
        if args:
            args = (_numbered(args[0]), *args[1:])
        return move(self, *args, **kwargs)

    return to


def making(theirs: Callable) -> Callable:
    """A function that is told the device by its name."""

    def make(*args: object, **kwargs: object) -> object:
        if kwargs.get("device") is not None:
            kwargs["device"] = _numbered(kwargs["device"])
        return theirs(*args, **kwargs)

    return make
