"""Real accelerators, links and machines, with the figures that their sources print."""

from .accelerators import ACCELERATORS
from .ampere import A100
from .boxes import CATALOGUE, DEFAULT
from .early import V100
from .hopper import H100
from .links import NETWORKS

__all__ = ["A100", "ACCELERATORS", "CATALOGUE", "DEFAULT", "H100", "NETWORKS", "V100"]
