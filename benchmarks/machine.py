"""The machine on which a benchmark runs, in one line."""

import platform
from importlib.metadata import version

from d2lpar.machines.measuring import system


def this_machine() -> str:
    """Processor, cores that this process may use, and versions of Python and PyTorch."""
    return (
        f"{system.processor()}, {system.cores()} cores, Python {platform.python_version()}, "
        f"PyTorch {version('torch')}"
    )
