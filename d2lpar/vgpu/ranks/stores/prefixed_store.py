"""Stores with a prefix, on virtual ranks: parts of a store, as groups have them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


class PrefixedStore(dist.PrefixStore):
    """Torch's PrefixStore; what C++ would not hand on to a store of ranks goes there directly."""

    def __init__(self, prefix: str, store: dist.Store) -> None:
        super().__init__(prefix, store)
        self._prefix = prefix
        self._store: Any = store  # of which torch's stub forgets the timeout

    @property
    def timeout(self) -> timedelta:
        """That of the store that it is made of."""
        found: timedelta = self._store.timeout
        return found

    def set_timeout(self, timeout: timedelta) -> None:
        """Let the store that it is made of have another."""
        self._store.set_timeout(timeout)

    def num_keys(self) -> int:
        """How many keys have values, in all of the store."""
        found: int = self._store.num_keys()
        return found

    def list_keys(self) -> list[str]:
        """Those of its own that have values."""
        begin = self._key("")
        keys = self._store.list_keys()
        return [key.removeprefix(begin) for key in keys if key.startswith(begin)]

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Add a value to a queue."""
        self._store.queue_push(self._key(key), value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the oldest value from a queue, as soon as there is one."""
        found: bytes = self._store.queue_pop(self._key(key), block)
        return found

    def queue_len(self, key: str) -> int:
        """How many values are in a queue."""
        found: int = self._store.queue_len(self._key(key))
        return found

    def clone(self) -> PrefixedStore:
        """The same store."""
        return PrefixedStore(self._prefix, self._store.clone())

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"
