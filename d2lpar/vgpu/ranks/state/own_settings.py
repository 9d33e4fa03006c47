"""What each process sets of torch, and of Python, for all of its threads.

Such are deterministic algorithms, which kernels attention may use, the precision of products. A
block that sets one for a while may wait in the middle for another rank: that must neither see what
was set, nor put it back.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable

from ...torch_backend.private.torch_settings import Setting, settings

_SETTINGS: list[Setting] = [
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (socket.getdefaulttimeout, socket.setdefaulttimeout),
    *settings(),
]
_READ = [read for read, _ in _SETTINGS]
_UNKNOWN = object()


class OwnSettings:
    """Those of one virtual process; at first as whoever starts it has them."""

    def __init__(self) -> None:
        self.save()

    def save(self) -> None:
        """Keep what the running process has."""
        self._kept = _read_all()

    def restore(self) -> None:
        """Let the running process have what was kept."""
        now = _read_all()
        if now == self._kept:  # as it mostly is
            return
        for (read, put), kept in zip(_SETTINGS, self._kept, strict=True):
            if kept is not _UNKNOWN and _read_one(read) != kept:
                put(kept)


def _read_all() -> list[object]:
    try:
        return [read() for read in _READ]
    except RuntimeError:
        return list(map(_read_one, _READ))


def _read_one(read: Callable[[], object]) -> object:
    """A value; of precisions, torch refuses to say one that its old and new names contradict."""
    with contextlib.suppress(RuntimeError):
        return read()
    return _UNKNOWN
