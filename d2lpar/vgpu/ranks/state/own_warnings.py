"""Which warnings a process shows, and where: `warnings.catch_warnings` changes it for a while.

A rank that waits inside such a block would leave it to the others, who would catch its warnings, or
show what it ignores; and whoever leaves last would put back what another has set.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

_NAMES = ("filters", "showwarning", "_showwarnmsg_impl")  # what `catch_warnings` puts back


class OwnWarnings:
    """The filters of one virtual process, first those of whoever starts it, and where they lead."""

    def __init__(self) -> None:
        self.save()
        self._kept["filters"] = list(warnings.filters)

    def save(self) -> None:
        """Keep what the running process has."""
        self._kept = {name: vars(warnings)[name] for name in _NAMES}

    def restore(self) -> None:
        """Let the running process have what was kept."""
        if _loud(self._kept["filters"]) != _loud(warnings.filters):
            with warnings.catch_warnings():
                pass  # makes Python forget which warnings it has shown, and shows no more
        vars(warnings).update(self._kept)


def _loud(filters: Sequence[tuple]) -> list[tuple]:
    """Those by which a process hears again of what has been shown."""
    return [entry for entry in filters if entry[0] in ("error", "always")]
