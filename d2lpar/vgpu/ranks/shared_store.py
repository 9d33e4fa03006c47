"""`TCPStore` of virtual ranks: a table that all share, in place of a server and its clients.

torch's would let a rank wait in C++ for others, whose turn could not come then.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from . import c10d_private
from .rank import here

Value = str | bytes


class SharedStore(c10d_private.StoreBase):
    """The table of a host and a port. Waiting for a key gives the turn to other ranks; that nobody
    can set it any more is noticed at once, whatever the timeout."""

    def __init__(
        self,
        host_name: str,
        port: int = 0,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = timedelta(seconds=300),
        **others: Any,
    ) -> None:
        super().__init__()
        self.host, self.port, self._limit = host_name, port, timeout
        stores = here.rank.world.stores
        self._items: dict[str, bytes] = stores.setdefault((host_name, port), {})

    @property
    def timeout(self) -> timedelta:
        """What was given: nothing runs out on virtual ranks."""
        return self._limit

    def set_timeout(self, timeout: timedelta) -> None:
        """Accepted, as the timeout is."""
        self._limit = timeout

    def set(self, key: str, value: Value) -> None:
        """Write a value."""
        self._items[key] = _encoded(value)

    def get(self, key: str) -> bytes:
        """Wait for a value, and read it."""
        self.wait([key])
        return self._items[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 at first; returns the sum."""
        total = int(self._items.get(key, b"0")) + amount
        self._items[key] = str(total).encode()
        return total

    def append(self, key: str, value: Value) -> None:
        """Write behind what is there."""
        self._items[key] = self._items.get(key, b"") + _encoded(value)

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Write if the value is the expected one ("": there is none); returns what is there."""
        found = self._items.get(key)
        if found == _encoded(expected) or (found is None and not expected):
            self._items[key] = _encoded(desired)
        return self._items.get(key, _encoded(expected))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until somebody has written all of them."""
        if not self.check(keys):
            text = f"a TCPStore for {', '.join(keys)}"
            here.rank.wait(lambda: self.check(keys), text)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of them are there."""
        return all(key in self._items for key in keys)

    def delete_key(self, key: str) -> bool:
        """Forget a key; whether it was there."""
        return self._items.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many there are."""
        return len(self._items)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for several values, and read them."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


def _encoded(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
