"""Groups that a program writes itself, and the backends by which it makes them.

`dist.Backend.register_backend(name, make)` lets torch call `make` on each rank of a group. What
that gives is the group: its methods, which are the program's, exchange tensors as they will. What
they do with tensors of devices takes its time; what they wait for has to come by a store, or by
another group.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import c10d_private
from .backends import GroupBackends
from .prefixed_store import PrefixedStore
from .process_group import VirtualProcessGroup


def is_own(group: object) -> bool:
    """Whether a program has written the class of a group (None: that of all ranks)."""
    found = c10d_private.default_group() if group is None else group
    return not isinstance(found, VirtualProcessGroup)


def make_group(
    backends: GroupBackends,
    name: str,
    ranks: Sequence[int],
    number: int,
    store: dist.Store,
    timeout: timedelta | None = None,
    options: object = None,
) -> Any:
    """The group of these ranks as the program's backend makes it for rank `number`; it is called
    `name`. NotImplementedError for what is no `ProcessGroup`."""
    backend = backends.of_program
    assert backend is not None, "a backend of the program's is asked for"
    make, takes_all = c10d_private.maker_of_groups(backend)
    of_device = PrefixedStore(f"{next(iter(backends.by_device))}/", store)
    place = (of_device, ranks.index(number), len(ranks))
    time = timeout or c10d_private.DEFAULT_TIMEOUT
    if takes_all:
        group = make(c10d_private.backend_options(*place, time, name, list(ranks)), options)
    else:
        group = make(*place, time)
    if not isinstance(group, dist.ProcessGroup):
        raise NotImplementedError(
            f"the backend {backend!r} of the program's gives a {type(group).__name__}: on virtual "
            "ranks it has to give a torch.distributed.ProcessGroup, written in Python. Use 'nccl' "
            "or 'gloo', or try the backend on real ranks, with torchrun"
        )
    c10d_private.name_group(group, name)
    return group
