"""Simulated programs: on a machine of their own, timed when they are warm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ...machines.hardware import Machine
from ...vgpu.api import simulation
from ...vgpu.torch_backend import runtime

MEMORY_BYTES = 10**13
REPEATS = 20
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3": torch.float8_e4m3fn,
}


def seconds(
    program: Callable[[], object],
    *,
    count: int = 1,
    warm_up: Callable[[], object] | None = None,
) -> float:
    """Simulated time of `count` runs in a row, all devices done, after one to warm up."""
    (warm_up or program)()
    start_s = synchronized_s()
    for _ in range(count):
        program()
    return synchronized_s() - start_s


def mean_s(program: Callable[[], object]) -> float:
    """Simulated time of one run, the mean of many in a row, as such kernels are measured."""
    return seconds(program, count=REPEATS) / REPEATS


def flops_of(program: Callable[[], object]) -> int:
    """Run a program once, and count the FLOP of its kernels."""
    with simulation.record() as timeline:
        program()
        synchronized_s()
    return sum(span.flops for span in timeline)


def synchronized_s() -> float:
    """The time when all that was queued is done."""
    rt = runtime.current_runtime()
    for device in range(rt.device_count):
        rt.synchronize(device)
    return rt.now_s()


@contextmanager
def gpus(machine: Machine, count: int = 1) -> Iterator[list[torch.device]]:
    """`count` GPUs of the first node of a machine; only shapes are computed.

    They have memory enough: that a published program fitted is known, not how, and fused kernels
    keep less for the backward pass than eager ones.
    """
    roomy = [replace(a, memory_bytes=MEMORY_BYTES) for a in machine.accelerators[:count]]
    machine = replace(machine, accelerators=tuple(roomy), node_size=None, network=None)
    with simulation.simulate(machine) as devices:
        yield devices
