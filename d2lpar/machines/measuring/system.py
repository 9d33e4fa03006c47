"""What the operating system says about this computer: processor, cores, memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # Linux, where platform.processor() knows nothing


def processor() -> str:
    """The name of the processor."""
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else ()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """The cores (hardware threads) that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """The main memory of the computer, in bytes."""
    import psutil

    return psutil.virtual_memory().total


def operating_system() -> str:
    """Its name and version."""
    return f"{platform.system()} {platform.release()} ({platform.machine()})"
