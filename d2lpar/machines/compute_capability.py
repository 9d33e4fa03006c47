"""NVIDIA's compute capability of an accelerator: what its kernels may ask for."""

from __future__ import annotations

from .hardware import Accelerator

# NVIDIA, "CUDA GPU Compute Capability", of the data centre's cards.
_OF_ARCHITECTURE = {
    "kepler": (3, 7),
    "maxwell": (5, 2),
    "pascal": (6, 0),
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
}
_OTHERS = {"ampere": (8, 6), "blackwell": (12, 0)}  # of cards for graphics
_DATA_CENTRE = {"ampere": ("A100", "A30"), "blackwell": ("B", "GB")}  # how their names begin


def compute_capability(accelerator: Accelerator) -> tuple[int, int]:
    """Major and minor number, (8, 0) of an A100.

    Of an accelerator without a known architecture, that of the first with its data types.
    """
    architecture, rates = accelerator.architecture, accelerator.flops_per_s
    if architecture not in _OF_ARCHITECTURE:
        return (8, 0) if "bfloat16" in rates else (7, 0) if "float16" in rates else (5, 2)
    beginnings = _DATA_CENTRE.get(architecture)
    if beginnings and not accelerator.name.startswith(beginnings):
        return _OTHERS[architecture]
    return _OF_ARCHITECTURE[architecture]
