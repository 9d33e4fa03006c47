"""What a process has replaced of `torch.nn.Module`: it counts for that process alone.

Programs do so for a while to make modules without memory, as accelerate's `init_empty_weights` does
with `register_parameter`. One rank must not put back what another one has just replaced.
"""

from __future__ import annotations

import torch

_NONE = object()


class OwnMethods:
    """The attributes of the class as one virtual process has them."""

    def __init__(self) -> None:
        self._kept = dict(vars(torch.nn.Module))

    def save(self) -> None:
        """Keep what the running process has."""
        self._kept = dict(vars(torch.nn.Module))

    def restore(self) -> None:
        """Let the running process have what was kept."""
        now = dict(vars(torch.nn.Module))
        if now == self._kept:
            return
        for name in now.keys() | self._kept.keys():
            kept = self._kept.get(name, _NONE)
            if kept is _NONE:
                delattr(torch.nn.Module, name)
            elif kept is not now.get(name, _NONE):
                setattr(torch.nn.Module, name, kept)
