"""Python objects that ranks exchange while tensors have shapes only.

torch sends them as bytes of tensors, in a group of NCCL of tensors of the device; these then have
no values. So hosts exchange them, in every group.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch

from ..world.rank import Rank, here, talking_by_host

_TO_ONE = ("send_object_list", "recv_object_list", "gather_object", "scatter_object_list")
NAMES = (*_TO_ONE, "broadcast_object_list", "all_gather_object")


def by_host(theirs: Callable[..., object]) -> Callable[..., object]:
    """One of `NAMES`, which on a rank that computes no values goes by the host."""
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def exchange(*args: object, **kwargs: object) -> object:
        rank: Rank | None = getattr(here, "rank", None)
        if rank is None or not rank.world.rt.shape_only:
            return theirs(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        if "device" in signature.parameters:
            given.arguments["device"] = torch.device("cpu")
        with talking_by_host():
            return theirs(*given.args, **given.kwargs)

    return exchange


def device_of_objects(theirs: Callable[..., str]) -> Callable[..., str]:
    """What torch asks for the kind of device whose tensors carry a group's objects."""

    @functools.wraps(theirs)
    def device(*args: object, **kwargs: object) -> str:
        rank: Rank | None = getattr(here, "rank", None)
        by_host = rank is not None and rank.talks_by_host
        return "cpu" if by_host else theirs(*args, **kwargs)

    return device
