"""Backends that a program registers (`dist.Backend.register_backend`): each rank has its own.

By the function that it registers a rank makes its groups, and each runs the program's source; what
a library registers whose modules all ranks share is shared, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from sys import _getframe  # documented, and quicker than `inspect.currentframe`

from . import c10d_private
from .c10d_private import BackendEntry
from .own_modules import is_shared

_names: set[str] = set()  # of all that ranks have registered so far


def registering(theirs: Callable[..., None]) -> Callable[..., None]:
    """`register_backend` of the class as ranks call it, which notes what is theirs."""

    @wraps(theirs)
    def register(name: str, *args: object, **options: object) -> None:
        is_new = c10d_private.backend_entry(name) is None
        theirs(name, *args, **options)
        if is_new and not is_shared(_getframe(2)):
            _names.add(name)

    return register


class OwnBackendNames:
    """Those of one virtual process; at first none."""

    def __init__(self) -> None:
        self._kept: dict[str, BackendEntry | None] = {}

    def save(self) -> None:
        """Keep what the running process has."""
        self._kept = {name: c10d_private.backend_entry(name) for name in _names}

    def restore(self) -> None:
        """Let the running process have what was kept."""
        for name in _names:
            kept = self._kept.get(name)
            if c10d_private.backend_entry(name) != kept:
                c10d_private.set_backend_entry(name, kept)
