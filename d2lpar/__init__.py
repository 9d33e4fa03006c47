"""d2lpar: the helper package of an interactive course on parallel deep learning.

Names are loaded when they are first used: importing the package starts no device and brings in
neither matplotlib nor the virtual GPUs.
"""

from __future__ import annotations

import importlib

from .devices import devices  # at once, or the module of the same name would take its place
from .portable import portable  # the same

_HOME = {
    "calibrate": "machines.calibration",
    "Calibration": "machines.calibration",
    "doctor": "diagnosis",
    "Checkpoints": "checkpoint",
    "fashion_mnist": "data",
    "DataError": "data",
    "Timer": "timing",
    "Benchmark": "timing",
    "measure": "timing",
    "clock_name": "timing",
    "trace_graph": "graphs",
    "Timeline": "timeline",
    "run_ranks": "ranks",
    "record": "simulation",
    "report": "cluster.reports",
    "shape_only": "simulation",
    "simulate": "simulation",
    "emulate_cuda": "emulation",
    "host_work": "simulation",
    "hazards": "vgpu.hazards",
    "HazardWarning": "vgpu.hazards",
    "syncs": "vgpu.syncs",
}
_MODULES = (
    "checks",
    "cluster",
    "collectives",
    "garments",
    "launch",
    "machines",
    "models",
    "pipeline",
    "planner",
    "plots",
    "recorded",
    "scaling",
    "timing",
)

__version__ = "0.1.0"
__all__ = ["__version__", "devices", "portable", *_HOME, *_MODULES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: object) -> None:
    """`%load_ext d2lpar` makes the cell magic `%%emulate_cuda 2` known."""
    from .emulation import magic

    magic.load(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
