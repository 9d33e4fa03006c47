"""What CUDA programs ask about a GPU beyond its memory, for the accelerators of the catalogue."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

KIB = 1024

# By compute capability: threads that a multiprocessor holds, and its shared memory and the most
# that one block may ask for, in KiB. NVIDIA, CUDA C++ Programming Guide, "Technical Specifications
# per Compute Capability".
_LIMITS = {
    (3, 5): (2048, 48, 48),
    (3, 7): (2048, 112, 48),
    (5, 2): (2048, 96, 48),
    (6, 0): (2048, 64, 48),
    (6, 1): (2048, 96, 48),
    (7, 0): (2048, 96, 96),
    (7, 5): (1024, 64, 64),
    (8, 0): (2048, 164, 163),
    (8, 6): (1536, 100, 99),
    (8, 9): (1536, 100, 99),
    (9, 0): (2048, 228, 227),
    (10, 0): (2048, 228, 227),
    (10, 3): (2048, 228, 227),
    (12, 0): (1536, 100, 99),
}


@dataclass(frozen=True)
class CudaDeviceProperties:
    """`torch.cuda.get_device_properties`; `total_memory` in bytes.

    The compute capability of an accelerator that is not known, and what follows from it, raises
    NotImplementedError when it is asked for. `uuid` and `pci_bus_id` tell the devices of a machine
    apart, the same in every run. What the catalogue does not know, such as clock rates, raises
    AttributeError.
    """

    name: str
    total_memory: int
    multi_processor_count: int | None
    capability: tuple[int, int] | None = field(default=None, repr=False)
    warp_size: int = 32
    number: int = 0
    machine: str = ""
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_domain_id: int = 0
    pci_device_id: int = 0
    max_threads_per_block: int = 1024
    shared_memory_per_block: int = 48 * KIB

    @property
    def uuid(self) -> uuid.UUID:
        """A name of the device that no other has."""
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{self.machine}, GPU {self.number}, {self.name}")

    @property
    def pci_bus_id(self) -> int:
        """Where it is plugged in: a number for each device."""
        return self.number + 1

    @property
    def regs_per_multiprocessor(self) -> int:
        """Registers of 32 bits of a multiprocessor."""
        return 128 * KIB if self._capability() == (3, 7) else 64 * KIB

    @property
    def max_threads_per_multi_processor(self) -> int:
        """How many threads a multiprocessor holds."""
        return _LIMITS[self._capability()][0]

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        """In bytes."""
        return _LIMITS[self._capability()][1] * KIB

    @property
    def shared_memory_per_block_optin(self) -> int:
        """The most bytes that a kernel may ask for."""
        return _LIMITS[self._capability()][2] * KIB

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
