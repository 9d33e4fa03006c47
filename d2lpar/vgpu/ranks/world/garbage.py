"""Python's collector of garbage, while many small objects are made and dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ...torch_backend.machine.runtime import Runtime

_apart = False  # within such a block
_frozen_by_others = False  # once seen: to count what is frozen takes long where that is much


@contextmanager
def older_objects_apart(rt: Runtime) -> Iterator[None]:
    """Let the collector not look, again and again, at what there was before the block.

    Ranks make graphs, and a recording makes spans, as fast as they can, which sets it off; torch
    alone has half a million objects that it would go through each time. While there are tensors on
    the devices they stay in its sight: a report of what fills a memory finds them by it. A program
    that froze objects itself is left alone.
    """
    global _apart
    if _apart or _others_freeze() or any(memory.allocated_bytes for memory in rt.memories):
        yield
        return
    _apart = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _apart = False


def _others_freeze() -> bool:
    global _frozen_by_others
    _frozen_by_others = _frozen_by_others or gc.get_freeze_count() > 0
    return _frozen_by_others
