"""`torch.Generator` for virtual devices."""

from __future__ import annotations

import torch

from ...device_naming import TYPE, naming
from .. import runtime, streams


def replace_generator() -> None:
    """Let `torch.Generator` be made for virtual devices: one of the CPU, as their arithmetic is."""
    theirs = torch.Generator

    class Kind(type(theirs)):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, theirs)

    class Generator(theirs, metaclass=Kind):
        __doc__ = theirs.__doc__

        def __new__(cls, device: object = "cpu") -> torch.Generator:
            place = torch.device(device)
            if place.type != TYPE:
                return theirs(place)
            generator = super().__new__(cls, runtime.current_runtime().backing)
            generator._index = streams.device_number(place)
            return generator

        def __init__(self, device: object = "cpu") -> None:
            super().__init__()

        @property
        def device(self) -> torch.device:
            return naming().device(self._index)

    Generator.__module__ = "torch"
    torch.Generator = Generator
