"""`torch.Generator` for virtual devices."""

from __future__ import annotations

import torch

from ...device_naming import TYPE
from ...patching import FOR_GOOD
from ..module import generators, streams
from ..module.generators import TorchGenerator


def replace_generator() -> None:
    """Let `torch.Generator` be made for virtual devices, too."""
    FOR_GOOD.set(torch, "Generator", Generator)


class _Chooser(type(TorchGenerator)):  # type: ignore[misc]  # a metaclass without a name
    """Makes generators of torch's for other devices, and counts all as instances."""

    def __call__(cls, device: str | int | torch.device = "cpu") -> torch.Generator:
        place = torch.device(device)
        if place.type != TYPE:
            return TorchGenerator(place)
        return generators.Generator(streams.device_number(place))

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, TorchGenerator)


class Generator(TorchGenerator, metaclass=_Chooser):
    """What programs find as `torch.Generator`."""


Generator.__module__, Generator.__doc__ = "torch", TorchGenerator.__doc__
