"""NVIDIA's compute capability of an accelerator: what its kernels may ask for."""

from __future__ import annotations

from .hardware import Accelerator

# NVIDIA, "CUDA GPU Compute Capability": of the data centre's cards of an architecture,
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
# of its cards for graphics, where they differ,
_OTHERS = {"pascal": (6, 1), "ampere": (8, 6), "blackwell": (12, 0)}
_DATA_CENTRE = {"pascal": ("P100",), "ampere": ("A100", "A30"), "blackwell": ("B", "GB")}
# and of single ones, by how their names begin.
_SINGLE = {"K40": (3, 5), "B300": (10, 3), "GB300": (10, 3)}


def known_capability(accelerator: Accelerator) -> tuple[int, int] | None:
    """Major and minor number, (8, 0) of an A100; None where the architecture is none of NVIDIA's,
    or not known."""
    for beginning, capability in _SINGLE.items():
        if accelerator.name.removeprefix("Tesla ").startswith(beginning):
            return capability
    architecture = accelerator.architecture
    beginnings = _DATA_CENTRE.get(architecture)
    if beginnings and not accelerator.name.removeprefix("Tesla ").startswith(beginnings):
        return _OTHERS[architecture]
    return _OF_ARCHITECTURE.get(architecture)


def compute_capability(accelerator: Accelerator) -> tuple[int, int]:
    """The same; where it is not known, that of the first with the accelerator's data types."""
    rates = accelerator.flops_per_s
    first = (8, 0) if "bfloat16" in rates else (7, 0) if "float16" in rates else (5, 2)
    return known_capability(accelerator) or first
