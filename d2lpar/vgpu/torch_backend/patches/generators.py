"""`torch.Generator` for virtual devices."""

from __future__ import annotations

import torch

from ...device_naming import TYPE, naming
from .. import runtime, streams, torch_private

_TorchGenerator = torch.Generator


def replace_generator() -> None:
    """Let `torch.Generator` be made for virtual devices: one of the CPU, as their arithmetic is."""
    torch_private.replace(torch, "Generator", Generator)


class _Chooser(type(_TorchGenerator)):  # type: ignore[misc]  # a metaclass without a name
    """Makes generators of torch's for other devices, and counts all as instances."""

    def __call__(cls, device: str | int | torch.device = "cpu") -> torch.Generator:
        place = torch.device(device)
        return super().__call__(place) if place.type == TYPE else _TorchGenerator(place)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchGenerator)


class Generator(_TorchGenerator, metaclass=_Chooser):
    """What `torch.Generator` is for a virtual device."""

    _index: int

    def __new__(cls, place: torch.device) -> Generator:
        """A generator where the arithmetic is, that says `place`."""
        generator = super().__new__(cls, runtime.current_runtime().backing)  # type: ignore[call-arg]
        generator._index = streams.device_number(place)
        return generator

    def __init__(self, place: torch.device) -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stub
        """The device that it was made for."""
        return naming().device(self._index)


Generator.__module__, Generator.__doc__ = "torch", _TorchGenerator.__doc__
