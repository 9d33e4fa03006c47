"""What one may ask the detectors: the hazards of a block, and what made the host wait in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..device_naming import naming
from ..races.stream_sanitizer import Hazard, collecting
from ..races.sync_debug import Waits, listening
from ..torch_backend.machine.runtime import running


@contextmanager
def hazards() -> Iterator[list[Hazard]]:
    """`with hazards() as found:` lists the hazards of the block instead of warning of them.

    Not seen are uses by the host through views, numpy arrays and storages that were taken before
    a non-blocking copy, and what only the order of host threads decides. Tensors that lie
    interleaved in memory, such as the columns of a matrix, count as overlapping.
    """
    naming().start()
    with collecting() as found:
        yield found


@contextmanager
def syncs() -> Iterator[Waits]:
    """`with syncs() as waits:` lists the calls of the block that made the host wait for a device.

    Printing `waits` shows them by place. It needs virtual devices: RuntimeError where there are
    none.
    """
    naming().start()
    rt = running()
    if rt is None:
        raise RuntimeError(
            "syncs() works on virtual GPUs, and there are none: ask for them with "
            'd2lpar.devices(n, kind="virtual"). On real ones, torch.cuda.set_sync_debug_mode(1) '
            "warns of some of these calls"
        )
    rt.host_threads.flush()
    with listening() as waits:
        try:
            yield waits
        finally:
            rt.host_threads.flush()
