"""`torch.cuda.default_generators`: the random numbers of each device that the program sees.

Megatron's `parallel_state` and others keep several sequences of random numbers apart by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch

from ..torch_backend.generators import DefaultGenerator
from . import lazy_init
from .device_translation import cuda, number
from .patches import Patches


def install(patches: Patches) -> None:
    """Let programs find them until `patches` are undone."""
    patches.set(torch.cuda, "default_generators", DefaultGenerators())


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
