"""Torch's own stores in the hands of virtual ranks: who waits there lets the others go on.

Whoever starts ranks may hand them a store of its own. Torch waits in C++, with the turn in its
hands, for what only another rank may set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..world.rank import Rank, here

_OWN = (dist.TCPStore, dist.FileStore, dist.HashStore)


Ready = Callable[[], bool]


def _wait(
    store: dist.Store, keys: Sequence[str], timeout: timedelta | None = None
) -> tuple[Ready, timedelta | None]:
    return lambda: store.check(list(keys)), timeout


def _get(store: dist.Store, key: str) -> tuple[Ready, None]:
    return lambda: store.check([key]), None


def _multi_get(store: dist.Store, keys: Sequence[str]) -> tuple[Ready, None]:
    return lambda: store.check(list(keys)), None


def _queue_pop(store: dist.Store, key: str, block: bool = True) -> tuple[Ready, None]:
    return lambda: not block or store.queue_len(key) > 0, None


# The methods that wait: whether what they wait for is there, and the limit that a call sets.
WAITS: dict[str, Callable[..., tuple[Ready, timedelta | None]]] = {
    "wait": _wait,
    "get": _get,
    "multi_get": _multi_get,
    "queue_pop": _queue_pop,
}


def letting_others_go_on(
    wait: Callable[..., Any], what: Callable[..., tuple[Ready, timedelta | None]]
) -> Callable[..., Any]:
    """A store's method that lets other ranks go on before it waits itself: when nobody can, only
    another process may set what it waits for."""

    @functools.wraps(wait)
    def method(store: Any, *args: Any, **kwargs: Any) -> Any:
        rank: Rank | None = getattr(here, "rank", None)
        if rank is not None and not rank.is_alone and isinstance(root := _root(store), _OWN):
            ready, timeout = what(store, *args, **kwargs)
            if not ready():
                text = f"{wait.__name__} of a {type(root).__name__}, {args}"
                rank.wait(ready, text, timeout=timeout or store.timeout)
        return wait(store, *args, **kwargs)

    return method


def _root(store: dist.Store) -> dist.Store:
    """The store that one with a prefix, or several, is made of."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
