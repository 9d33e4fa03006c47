"""Measures what this machine reaches, in seconds."""

from __future__ import annotations

import datetime
from time import perf_counter

import torch

from ...timeline.inputs import Seconds, checked
from . import microbenchmarks, system
from .calibration import CalibratedGpu, Calibration
from .readings import Reading

BUDGET_S = 12.0
# The share of the time that each probe of a device may use.
SHARES = {
    "matmul": 0.35,
    "convolution": 0.08,
    "memory": 0.3,
    "dispatch": 0.05,
    "copy": 0.1,
    "threads": 0.12,
}


@checked
def calibrate(
    *, budget_s: Seconds = BUDGET_S, device: torch.device | str | None = None
) -> Calibration:
    """Measure this machine: its CPU and, if it has one, its first GPU (or `device`).

    It takes about `budget_s` seconds, more only where three repeats of the smallest sizes do not
    fit; larger sizes are left out where they would take too long. Measures matrix products over
    sides and data types, convolutions, memory by working set, the cost of an operation and of a
    view, copies, and the gain of threads. Uses as many threads as torch does now, and leaves
    torch's settings as they were. Save the result with `.save()`: then "this machine" is one to
    simulate. On real GPUs this is untested.

    Raises ValueError for a budget that is not above zero or a device that cannot be measured.
    """
    chosen = _device(device)
    start_s = perf_counter()
    with torch.no_grad():
        cpu = torch.device("cpu")
        share = 1.0 if chosen == cpu else 0.5
        readings = _probe(cpu, budget_s * share)
        readings += microbenchmarks.thread_scaling(
            system.cores(), budget_s * share * SHARES["threads"]
        )
        gpu = None
        if chosen != cpu:
            readings += _probe(chosen, budget_s * share)
            gpu = _describe(chosen)
    return Calibration(
        when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        processor=system.processor(),
        cores=system.cores(),
        threads=torch.get_num_threads(),
        memory_bytes=system.memory_bytes(),
        torch_version=torch.__version__,
        seconds=perf_counter() - start_s,
        readings=tuple(readings),
        gpu=gpu,
    )


def _probe(device: torch.device, budget_s: float) -> list[Reading]:
    """All that is measured on any device."""
    limit_bytes = system.memory_bytes() // 16
    memory_s, cache_bytes = budget_s * SHARES["memory"], _cache_bytes(device)
    return [
        *microbenchmarks.matmul(device, budget_s * SHARES["matmul"]),
        *microbenchmarks.convolution(device, budget_s * SHARES["convolution"]),
        *microbenchmarks.memory(device, memory_s, limit_bytes=limit_bytes, cache_bytes=cache_bytes),
        *microbenchmarks.dispatch(device, budget_s * SHARES["dispatch"]),
        *microbenchmarks.copies(device, budget_s * SHARES["copy"], limit_bytes=limit_bytes),
    ]


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{device!r} is no device: {error}") from None
    if chosen.type == "cpu":
        return torch.device("cpu")
    module = torch.get_device_module(chosen) if chosen.type in ("cuda", "vgpu") else None
    if module is None or not 0 <= (chosen.index or 0) < module.device_count():
        raise ValueError(
            f"there is no {device} to measure here; leave device out for what there is"
        )
    return torch.device(chosen.type, chosen.index or 0)


def _cache_bytes(device: torch.device) -> int:
    """What a GPU says of the cache that its multiprocessors share; 0 where nothing says it."""
    if device.type == "cpu":
        return 0
    properties = torch.get_device_module(device).get_device_properties(device)
    return getattr(properties, "L2_cache_size", 0)


def _describe(device: torch.device) -> CalibratedGpu:
    module = torch.get_device_module(device)
    properties = module.get_device_properties(device)
    count = module.device_count()
    return CalibratedGpu(
        str(device),
        properties.name,
        properties.total_memory,
        getattr(properties, "multi_processor_count", None),
        count,
        count > 1 and module.can_device_access_peer(0, 1),
    )
