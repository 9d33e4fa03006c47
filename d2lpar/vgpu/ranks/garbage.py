"""Python's collector of garbage, while many ranks make and drop tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def older_objects_apart() -> Iterator[None]:
    """Let the collector not look, again and again, at what there was before the block.

    Ranks make graphs as fast as they can, which sets it off; torch alone has half a million objects
    that it would go through each time. A program that froze objects itself is left alone.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
