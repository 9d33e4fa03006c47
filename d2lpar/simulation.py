"""What one may ask of the simulated clock: a record of events, shapes without values, a machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from . import machines
from .timeline import Timeline
from .vgpu import runtime


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
) -> Iterator[machines.Machine]:
    """Run a block on another machine with `n` devices, on a clock of its own, shapes only.

    The clock and memories outside do not move, so interactive figures may use it at any time.
    `with_values=True` computes values too. Raises ValueError for an unknown machine.
    """
    chosen = machines.machine(machine)
    with runtime.instead(chosen if n is None else chosen.with_accelerators(n)) as rt:
        rt.shape_only = not with_values
        yield rt.machine
