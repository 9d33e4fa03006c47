"""Python's collector of garbage, while many small objects are made and dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ...torch_backend.machine.runtime import Runtime


@contextmanager
def older_objects_apart(rt: Runtime) -> Iterator[None]:
    """Let the collector not look, again and again, at what there was before the block.

    Ranks make graphs, and a recording makes spans, as fast as they can, which sets it off; torch
    alone has half a million objects that it would go through each time. While there are tensors on
    the devices they stay in its sight: a report of what fills a memory finds them by it. A program
    that froze objects itself is left alone.
    """
    if gc.get_freeze_count() or any(memory.allocated_bytes for memory in rt.memories):
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
