"""`torch.cuda.default_generators`: the random numbers of each device that the program sees.

Megatron's `parallel_state` and others keep several sequences of random numbers apart by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch

from ..torch_backend.runtime import current_runtime
from . import lazy_init
from .device_translation import cuda, number
from .patches import Patches
from .refusals import refusal


def install(patches: Patches) -> None:
    """Let programs find them until `patches` are undone."""
    patches.set(torch.cuda, "default_generators", DefaultGenerators())


class DefaultGenerators(Sequence["DefaultGenerator"]):
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
            return [DefaultGenerator(i) for i in places]
        return DefaultGenerator(places)


class DefaultGenerator(type(torch.random.default_generator)):  # type: ignore[misc]  # torch's own
    """Where the random numbers of `cuda:index` are: what draws none of its own, draws from them.

    Of the generator that it is, for functions of torch that take one, nothing is used.
    """

    _index: int

    def __new__(cls, index: int) -> DefaultGenerator:
        """The generator of a device, by the number that the program has for it."""
        generator = super().__new__(cls)
        generator._index = index
        return generator

    def __init__(self, index: int) -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        """The device, as the program calls it."""
        return cuda(self._index)

    def get_state(self) -> torch.Tensor:
        """The state, as `set_state` takes it."""
        return current_runtime().random_state(self._number).clone()

    def set_state(self, new_state: torch.Tensor) -> None:
        """Go on with the random numbers that followed `new_state`."""
        current_runtime().set_random_state(self._number, new_state)

    def manual_seed(self, seed: int) -> DefaultGenerator:
        """Restart them from `seed`."""
        current_runtime().manual_seed(int(seed), self._number)
        return self

    def seed(self) -> int:
        """Restart them from a seed of the operating system's, which is returned."""
        seed = torch.Generator().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed that they were started from."""
        return current_runtime().seed_of(self._number)

    @property
    def _number(self) -> int:
        return number(self.device)

    get_offset = refusal(
        "Generator.get_offset", "random numbers of the host's have none; use get_state"
    )
    set_offset = refusal(
        "Generator.set_offset", "random numbers of the host's have none; use set_state"
    )
    graphsafe_get_state = refusal("Generator.graphsafe_get_state", "use get_state")
    graphsafe_set_state = refusal("Generator.graphsafe_set_state", "use set_state")
    clone_state = refusal("Generator.clone_state", "use get_state and set_state")
