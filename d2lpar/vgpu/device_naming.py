"""What virtual devices are called: by programs, and in texts.

The engine knows devices by their numbers, and torch by "vgpu". What a program says and reads is up
to one object, the `DeviceNaming` in use: `cuda/` lends the engine another one, for a block in which
they are called "cuda:1". It belongs to the process and not to a thread, as the threads that a
program starts must see the same devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TYPE = "vgpu"  # torch's name for devices of the kind PrivateUse1, once they are registered
MOST_DEVICES = 128  # torch keeps the number of a device in 8 bits, with a sign
RANK_DEVICE = "D2LPAR_RANK_DEVICE"  # the variable that tells a virtual rank its device, "vgpu:1"

_made: dict[tuple[str, int], torch.device] = {}  # a cache: torch.device(…) costs more


class DeviceNaming:
    """Devices are "vgpu:0", "vgpu:1", …, and everybody calls them so."""

    type = TYPE

    @property
    def module(self) -> str:
        """The module that programs ask for streams: "torch.vgpu"."""
        return f"torch.{self.type}"

    def device(self, index: int) -> torch.device:
        """The device that a program sees for that number."""
        return device(index, self.type)

    def parse(self, device: object) -> object:
        """What torch knows as the device that a program names; anything else as it is."""
        return device

    def saved_on(self, index: int) -> str | None:
        """The place that `torch.save` notes for a storage of that device; None for the host."""
        return None

    def choose(self, n: int) -> list[torch.device] | None:
        """The first `n` devices, if a program has no choice which; None if it has."""
        return None

    def start(self) -> None:
        """A program is going to watch its devices: from now on it is settled which they are."""


def device(index: int, kind: str = TYPE) -> torch.device:
    """`torch.device(kind, index)`, made once."""
    made = _made.get((kind, index))
    if made is None:
        import torch  # here: the command line reads names, and needs no torch

        made = _made[kind, index] = torch.device(kind, index)
    return made


_in_use = DeviceNaming()


def naming() -> DeviceNaming:
    """The naming in use."""
    return _in_use


def text(index: int) -> str:
    """What texts call a device: "vgpu:1"."""
    return f"{_in_use.type}:{index}"


@contextmanager
def named_by(other: DeviceNaming) -> Iterator[None]:
    """Use another naming in the block."""
    global _in_use
    before, _in_use = _in_use, other
    try:
        yield
    finally:
        _in_use = before
