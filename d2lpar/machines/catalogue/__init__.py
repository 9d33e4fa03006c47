"""Real accelerators, links and machines, by name, with the figures that their sources print.

Peaks are dense. Matrices of float16 and bfloat16 are multiplied on tensor cores where there are
some, summed in fp32 as PyTorch has it; float64 uses them on A100, H100 and those of their kind.
"float8_e4m3" is that of fp8 products. A rate that is missing is that of float32.
"""

from ..hardware import Accelerator
from . import ada, amd, ampere, blackwell, clouds, desktops, early, hopper, servers
from .ampere import A100
from .early import V100
from .hopper import H100
from .links import NETWORKS

__all__ = ["A100", "ACCELERATORS", "CATALOGUE", "DEFAULT", "H100", "NETWORKS", "V100"]

ACCELERATORS = {  # from old to new
    accelerator.name: accelerator
    for generation in (early, ampere, ada, hopper, blackwell, amd)
    for accelerator in vars(generation).values()
    if isinstance(accelerator, Accelerator)
}
DEFAULT = servers.DEFAULT
CATALOGUE = {  # the textbook's comes first
    machine.name: machine for machine in (*servers.MACHINES, *desktops.MACHINES, *clouds.MACHINES)
}
