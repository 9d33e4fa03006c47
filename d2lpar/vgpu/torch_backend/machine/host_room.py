"""The host's own memory, in which the values of virtual tensors are."""

from __future__ import annotations

import re

from ....timeline.formatting import bytes_text
from ...device_naming import text
from .runtime import Runtime

_REFUSED = re.compile(r"DefaultCPUAllocator: .* tried to allocate (\d+) bytes")


def check(rt: Runtime, index: int, error: RuntimeError, *, has_room: bool = False) -> None:
    """Where the host has no memory for values: raise OutOfMemoryError if the device has none,
    either (it `has_room` where that was asked for before), and else say so. Other errors pass."""
    refused = _REFUSED.search(str(error))
    if refused is None:
        return
    nbytes, memory = int(refused[1]), rt.memories[index]
    if not has_room and nbytes > memory.limit_bytes - memory.allocated_bytes:
        memory.allocate(nbytes, rt.current_stream(index))
    raise RuntimeError(
        f"this machine has no memory left for {bytes_text(nbytes)} of values, which {text(index)} "
        "could hold: use fewer, or compute none (--shapes-only, or within d2lpar.shape_only())"
    ) from error
