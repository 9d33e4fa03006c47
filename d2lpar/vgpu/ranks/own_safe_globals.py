"""What a process lets `torch.load` unpickle besides tensors (`add_safe_globals`).

Each rank has its own, first that of whoever starts it. A module of torch's that adds its classes
when it is imported is imported once for all ranks, and so adds them for each.
"""

from __future__ import annotations

import contextlib
from typing import Any

from torch import serialization

_of_torch: set[Any] = set()  # what has been added of torch's own so far, whoever has added it


class OwnSafeGlobals:
    """Those of one virtual process."""

    def __init__(self) -> None:
        self._given: set[Any] = set()  # of torch's: whoever removes them does not get them again
        self.save()

    def save(self) -> None:
        """Keep what the running process has."""
        self._kept: set[Any] = set(serialization.get_safe_globals())
        added = {each for each in self._kept if _is_of_torch(each)}
        _of_torch.update(added)
        self._given |= added

    def restore(self) -> None:
        """Let the running process have what was kept."""
        wanted = self._kept | (_of_torch - self._given)
        if wanted != set(serialization.get_safe_globals()):
            serialization.clear_safe_globals()
            serialization.add_safe_globals(list(wanted))


def _is_of_torch(entry: object) -> bool:
    """Whether it is a class or function of torch's; one with a name of its own is a pair."""
    with contextlib.suppress(TypeError, ValueError):
        entry, _ = entry  # type: ignore[misc]
    return (getattr(entry, "__module__", None) or "").partition(".")[0] == "torch"
