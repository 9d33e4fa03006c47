"""What one may ask of the simulated clock: a record of events, shapes without values, a machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from . import machines
from .timeline import Timeline
from .vgpu import backend, runtime


def record() -> AbstractContextManager[Timeline]:
    """`with record() as timeline:` notes everything that virtual devices and their host do.

    Raises RuntimeError where there are no virtual devices.
    """
    return runtime.runtime().recording()


@contextmanager
def shape_only() -> Iterator[None]:
    """Simulate times without arithmetic: full-size work in seconds of a laptop's time.

    Tensors made in the block have a shape and no values; those from before keep theirs. Values
    that the host asks for are NaN (0 in integer types). What depends on values, such as boolean
    masks, raises RuntimeError.
    """
    rt = runtime.runtime()
    outer, rt.shape_only = rt.shape_only, True
    try:
        yield
    finally:
        rt.shape_only = outer


def host_work(seconds: float, name: str) -> None:
    """Let simulated time pass on the host for work that is no tensor operation (loading data).

    On real devices such work takes its own time: nothing happens.
    """
    rt = runtime.running()
    if rt is not None:
        rt.host_work(seconds, name)


@contextmanager
def simulate(
    machine: str | machines.Machine, n: int | None = None, *, with_values: bool = False
) -> Iterator[list[torch.device]]:
    """`with simulate("8x-a100-nvswitch", 4) as gpus:` runs the block on another machine.

    It has `n` devices (default: all of the machine) and a clock and memories of its own: those
    outside do not move, so that interactive figures may use it at any time. Only shapes are
    computed, unless `with_values=True`. Raises ValueError for an unknown machine.
    """
    chosen = machines.machine(machine)
    chosen = chosen if n is None else chosen.with_accelerators(n)
    backend.register()
    with runtime.instead(chosen) as rt:
        rt.shape_only = not with_values
        yield [torch.device("vgpu", i) for i in range(rt.device_count)]
