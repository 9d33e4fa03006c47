"""What CUDA programs ask about a GPU beyond its memory, for the accelerators of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass

# By a part of the accelerator's name: NVIDIA, "CUDA GPU Compute Capability".
_CAPABILITY = {
    "K80": (3, 7),
    "GTX Titan X": (5, 2),
    "P100": (6, 0),
    "P40": (6, 1),
    "Titan X (Pascal)": (6, 1),
    "V100": (7, 0),  # and GV100
    "1660": (7, 5),
    "Titan RTX": (7, 5),
    "2080 Ti": (7, 5),
    "Quadro RTX 6000": (7, 5),
    "T4-": (7, 5),
    "A100": (8, 0),
    "A10": (8, 6),
    "3060": (8, 6),
    "3080": (8, 6),
    "3090": (8, 6),
    "A5000": (8, 6),
    "A6000": (8, 6),
    "4070": (8, 9),
    "4090": (8, 9),
    "L4": (8, 9),  # and L40, L40S
    "H100": (9, 0),
    "H20": (9, 0),  # and H200, GH200
    "H800": (9, 0),
    "B200": (10, 0),  # and GB200
    "B300": (10, 3),  # and GB300
    "RTX PRO 6000": (12, 0),
    "5070": (12, 0),
    "5090": (12, 0),
}


@dataclass(frozen=True)
class CudaDeviceProperties:
    """`torch.cuda.get_device_properties`; `total_memory` in bytes.

    The compute capability of an accelerator that is not known raises NotImplementedError when it
    is asked for.
    """

    name: str
    total_memory: int
    multi_processor_count: int | None
    warp_size: int = 32

    @property
    def major(self) -> int:
        """The first number of the compute capability: 8 of (8, 6)."""
        return self._capability()[0]

    @property
    def minor(self) -> int:
        """The second number of the compute capability: 6 of (8, 6)."""
        return self._capability()[1]

    def _capability(self) -> tuple[int, int]:
        for part, capability in _CAPABILITY.items():
            if part in self.name:
                return capability
        raise NotImplementedError(
            f"the compute capability of {self.name} is not known: emulate a machine with one of "
            f"{', '.join(_CAPABILITY)}"
        )
