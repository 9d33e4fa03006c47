"""Virtual GPUs: real `torch.device("vgpu:i")`s with their own memory and a simulated clock.

This is the engine's face: the names that other rooms use, loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.detectors import hazards as hazards
    from .api.detectors import syncs as syncs
    from .api.device_choice import VISIBLE as VISIBLE
    from .api.device_choice import devices as devices
    from .api.simulation import host_work as host_work
    from .api.simulation import record as record
    from .api.simulation import shape_only as shape_only
    from .api.simulation import simulate as simulate
    from .api.timing import Timer as Timer
    from .api.timing import clock_name as clock_name
    from .api.timing import measure as measure
    from .api.timing import now_s as now_s
    from .conductor.emulation import emulate_cuda as emulate_cuda
    from .ranks import run_alike as run_alike
    from .ranks import run_ranks as run_ranks
    from .torch_backend.comm.data_parallel_comm import without_nccl as without_nccl
    from .torch_backend.machine.runtime import current_runtime as current_runtime
    from .torch_backend.register import register_backend as register_backend

_HOME = {
    "VISIBLE": "api.device_choice",
    "devices": "api.device_choice",
    "hazards": "api.detectors",
    "syncs": "api.detectors",
    "host_work": "api.simulation",
    "record": "api.simulation",
    "shape_only": "api.simulation",
    "simulate": "api.simulation",
    "Timer": "api.timing",
    "clock_name": "api.timing",
    "measure": "api.timing",
    "now_s": "api.timing",
    "emulate_cuda": "conductor.emulation",
    "run_alike": "ranks",
    "run_ranks": "ranks",
    "without_nccl": "torch_backend.comm.data_parallel_comm",
    "current_runtime": "torch_backend.machine.runtime",
    "register_backend": "torch_backend.register",
}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
