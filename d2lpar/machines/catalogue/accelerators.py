"""All accelerators of the catalogue by name, from old to new.

Peaks are dense. Matrices of float16 and bfloat16 are multiplied on tensor cores where there are
some, summed in fp32 as PyTorch has it; float64 uses them on A100, H100 and those of their kind.
"float8_e4m3" is that of fp8 products. A rate that is missing is that of float32.
"""

from __future__ import annotations

from ..hardware import Accelerator
from . import ada, amd, ampere, blackwell, early, hopper

ACCELERATORS = {
    accelerator.name: accelerator
    for generation in (early, ampere, ada, hopper, blackwell, amd)
    for accelerator in vars(generation).values()
    if isinstance(accelerator, Accelerator)
}
