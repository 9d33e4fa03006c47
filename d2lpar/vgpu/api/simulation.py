"""What one may ask of a clock: a record of events; of the simulated one, shapes and a machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from ... import machines
from ...timeline import Timeline
from ...timeline.inputs import NotNegative, checked
from ..device_naming import device, naming
from ..torch_backend import register
from ..torch_backend.cost import host_cost
from ..torch_backend.machine import runtime
from . import timing


@checked
def record(
    devices: timing.Devices = None, *, to: str | os.PathLike | None = None
) -> AbstractContextManager[Timeline]:
    """`with record() as timeline:` notes everything that devices and their host do in the block.

    On virtual devices the timeline grows as the block runs, in simulated time. On real ones, or
    the CPU alone, torch.profiler measures, and the timeline is filled when the block ends. Which
    of the two `devices` says (default: virtual ones if there are any).

    For long runs: `to` is a file to which spans are written as they come, for
    https://ui.perfetto.dev, and the timeline sums them up. Raises OSError if it cannot be written.
    """
    naming().start()
    if timing.clock_name(devices) != timing.MEASURED:
        return runtime.current_runtime().recording(to=to)
    from . import profiling

    return profiling.record(devices, to=to)


@contextmanager
def shape_only() -> Iterator[None]:
    """Simulate times without arithmetic: full-size work in seconds of a laptop's time.

    Tensors made in the block have a shape and no values; those from before keep theirs. Values
    that the host asks for are NaN (0 in integer types). What depends on values, such as boolean
    masks, raises RuntimeError.
    """
    rt = runtime.current_runtime()
    if rt.shape_only and not rt.shape_only_blocks:  # as a whole
        yield
        return
    rt.shape_only_blocks += 1
    rt.shape_only = True
    try:
        yield
    finally:  # blocks may end in another order than they began
        rt.shape_only_blocks -= 1
        rt.shape_only = rt.shape_only_blocks > 0


@checked
def host_work(seconds: NotNegative, name: str) -> None:
    """Let simulated time pass on the host for work that is no tensor operation (loading data).

    On real devices such work takes its own time: nothing happens. Raises ValueError for a negative
    number of seconds.
    """
    rt = runtime.running()
    if rt is not None:
        rt.host_work(seconds, name)


@contextmanager
def simulate(
    machine: machines.Named, n: int | None = None, *, with_values: bool = False
) -> Iterator[list[torch.device]]:
    """`with simulate("8x-a100-nvswitch", 4) as gpus:` runs the block on another machine.

    It has `n` devices (default: all of the machine) and a clock and memories of its own: those
    outside do not move, so that interactive figures may use it at any time. Only shapes are
    computed, and values that are read are NaN, unless `with_values=True`. What is left of it after
    the block can be read, and nothing else: RuntimeError. Raises ValueError for an unknown machine.
    """
    chosen = machines.machine(machine)
    chosen = chosen if n is None else chosen.with_accelerators(n)
    register.register_backend()
    with runtime.instead(chosen) as rt, host_cost.nothing_pending():
        rt.shape_only = not with_values
        yield [device(i) for i in range(rt.device_count)]
