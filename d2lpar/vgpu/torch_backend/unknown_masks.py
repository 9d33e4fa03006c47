"""What a mask selects where no values are known: nobody can say, or, for a while, everything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Here(threading.local):
    selects_all = False


_here = _Here()


def select_all() -> bool:
    """Whether masks in this thread select everything."""
    return _here.selects_all


@contextmanager
def taken_to_select_all(yes: bool) -> Iterator[None]:
    """Let masks in this thread select everything in the block, if `yes`."""
    before, _here.selects_all = _here.selects_all, yes
    try:
        yield
    finally:
        _here.selects_all = before
