"""Python objects that ranks exchange while tensors have shapes only.

torch sends them as bytes of tensors. A program may ask for tensors of its device, which then have
no values: so the host's are used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

from .rank import here

NAMES = ("send_object_list", "recv_object_list", "broadcast_object_list")


def by_host(theirs: Callable[..., object]) -> Callable[..., object]:
    """One of `NAMES`, which on a rank that computes no values leaves the device out."""

    @functools.wraps(theirs)
    def exchange(
        object_list: list,
        peer: object = None,
        group: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
        *args: object,
        **kwargs: object,
    ) -> object:
        rank = getattr(here, "rank", None)
        if rank is not None and rank.world.rt.shape_only:
            device = torch.device("cpu")
        named = {name: kwargs.pop(name) for name in ("src", "dst") if name in kwargs}
        peer = next(iter(named.values()), peer)
        return theirs(object_list, peer, group, device, *args, **kwargs)

    return exchange
