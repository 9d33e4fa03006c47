"""The classes `TCPStore`, `FileStore` and `PrefixStore` on virtual ranks: what they make there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .prefixed_store import PrefixedStore
from .virtual_stores import TIMEOUT, FileStore, TCPStore


def classes(here: threading.local) -> Iterator[type]:
    """Those that make stores of ranks in a rank's thread, and torch's elsewhere; of either kind are
    their instances. Each has torch's as `__wrapped__`."""
    for theirs, ours, make in _makers(here):
        yield _either(theirs, ours, make, here)


def _either(
    theirs: type, ours: type, make: Callable[..., dist.Store], here: threading.local
) -> type:
    class OfEitherKind(type(theirs)):  # type: ignore[misc]  # pybind's, of which mypy knows nothing
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not either:  # a program's own, made of this
                return super().__call__(*args, **kwargs)
            return (theirs if getattr(here, "rank", None) is None else make)(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            found = super().__instancecheck__(instance)
            return found or (cls is either and isinstance(instance, (theirs, ours)))

    words = {name: getattr(theirs, name) for name in ("__module__", "__qualname__", "__doc__")}
    either = OfEitherKind(theirs.__name__, (theirs,), {**words, "__wrapped__": theirs})
    return either


def _makers(here: threading.local) -> Iterator[tuple[type, type, Callable[..., dist.Store]]]:
    """Torch's classes, what is in their place on a rank, and what makes it."""

    def tcp_store(
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> dist.Store:
        return here.rank.open_tcp_store(
            host=host_name,
            port=port,
            size=world_size,
            is_master=is_master,
            timeout=timeout,
            waits=wait_for_workers,
            by_libuv=use_libuv,
        )

    def file_store(file_name: str, world_size: int = -1) -> dist.Store:
        with open(file_name, "a", encoding="utf-8"):  # programs remove it when they have ended
            pass
        return here.rank.open_file_store(file_name)

    yield dist.TCPStore, TCPStore, tcp_store
    yield dist.FileStore, FileStore, file_store
    yield dist.PrefixStore, PrefixedStore, PrefixedStore
