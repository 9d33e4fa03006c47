"""The machine on which a benchmark runs, in one line."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # Linux, where platform.processor() knows nothing


def this_machine() -> str:
    """Processor, cores that this process may use, and versions of Python and PyTorch."""
    return (
        f"{_processor()}, {_cores()} cores, Python {platform.python_version()}, "
        f"PyTorch {version('torch')}"
    )


def _processor() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else ()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
