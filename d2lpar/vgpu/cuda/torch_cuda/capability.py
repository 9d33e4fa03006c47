"""What CUDA programs ask about a GPU beyond its memory, for the accelerators of the catalogue."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CudaDeviceProperties:
    """`torch.cuda.get_device_properties`; `total_memory` in bytes.

    The compute capability of an accelerator that is not known raises NotImplementedError when it
    is asked for. `uuid` tells the devices of a machine apart, the same in every run. What the
    catalogue does not know, such as clock rates, raises AttributeError.
    """

    name: str
    total_memory: int
    multi_processor_count: int | None
    capability: tuple[int, int] | None = field(default=None, repr=False)
    warp_size: int = 32
    number: int = 0
    machine: str = ""

    @property
    def uuid(self) -> uuid.UUID:
        """A name of the device that no other has."""
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{self.machine}, GPU {self.number}, {self.name}")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # `copy` and `pickle` ask before there is a name
            raise AttributeError(name)
        raise AttributeError(
            f"the {name} of {self.name} is not emulated: the catalogue of machines does not know "
            "it; give a value of your own where the program asks for it"
        )

    @property
    def major(self) -> int:
        """The first number of the compute capability: 8 of (8, 6)."""
        return self._capability()[0]

    @property
    def minor(self) -> int:
        """The second number of the compute capability: 6 of (8, 6)."""
        return self._capability()[1]

    def _capability(self) -> tuple[int, int]:
        if self.capability is None:
            raise NotImplementedError(
                f"the compute capability of {self.name} is not known: emulate a machine with one "
                "of NVIDIA's GPUs"
            )
        return self.capability
