"""`torch.cuda.default_generators`: the random numbers of each device that the program sees.

Megatron's `parallel_state` and others keep several sequences of random numbers apart by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import torch

from ...patching import Patches
from ...torch_backend.module.generators import DefaultGenerator
from .. import lazy_init
from ..device_translation import CUDA, VIRTUAL, cuda, number


def install(patches: Patches) -> None:
    """Let programs find them until `patches` are undone."""
    patches.set(torch.cuda, "default_generators", DefaultGenerators())


def check_generator(args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """RuntimeError, in torch's words, for a generator of the host where a device draws, and the
    other way round: virtual devices could, real ones cannot."""
    generator = kwargs["generator"]
    place = kwargs.get("device")
    if place is None:
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        place = next((tensor.device for tensor in tensors), None) or torch.get_default_device()
    if not isinstance(generator, torch.Generator) or not isinstance(place, (str, torch.device)):
        return
    wanted, found = (_type_of(torch.device(each)) for each in (place, generator.device))
    if {wanted, found} == {CUDA, "cpu"}:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")


def _type_of(device: torch.device) -> str:
    return CUDA if device.type == VIRTUAL else device.type


class DefaultGenerators(Sequence[DefaultGenerator]):
    """One for each visible device, in order."""

    def __len__(self) -> int:
        return lazy_init.device_count()

    @overload
    def __getitem__(self, index: int) -> DefaultGenerator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DefaultGenerator]: ...
    def __getitem__(self, index: int | slice) -> DefaultGenerator | Sequence[DefaultGenerator]:
        """Raises IndexError where there is no such device."""
        places = range(len(self))[index]
        if isinstance(places, range):
            return [DefaultGenerator(number(cuda(i))) for i in places]
        return DefaultGenerator(number(cuda(places)))
