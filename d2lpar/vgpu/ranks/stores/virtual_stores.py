"""Stores of keys and values on virtual ranks: what torch's TCPStore and FileStore are to processes.

A rank that asks for a key that nobody has set lets the others run until somebody does. Torch's own
stores would wait in C++ with the turn in their hands, for ever. So does one that asks in a loop,
and gets the same answer. As other things of the host, values are exchanged in no time; who waits
for one goes on no earlier than it was set.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ...sim.clock import HostThread

TIMEOUT = timedelta(seconds=300)  # torch's own
FIRST_FREE_PORT = 40000  # of those given to who asks for port 0


class StoredValues:
    """What is in a store, the same to all who have opened it: values, and when they were set."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Kept for C++: a PrefixStore knows the store that it is made of, and not its Python part.
        self.opened: list[RankStore] = []
        self.values: dict[str, bytes] = {}
        self.set_s: dict[str, float] = defaultdict(float)
        self.since_s: dict[str, float] = {}  # of keys: since when they have a value
        self.queues: dict[str, list[bytes]] = defaultdict(list)
        self.changes = 0
        self.asked: WeakKeyDictionary[WaitsInTurn, tuple] = WeakKeyDictionary()  # what, and when
        self.joined = 0
        self.master: int | None = None  # who has opened it first as that


class OpenStores:
    """The stores that the ranks of a world have opened, by what they call them."""

    def __init__(self) -> None:
        self._values: dict[str, StoredValues] = {}
        self._opened: Counter[tuple[int, str]] = Counter()
        self._free_ports = count(FIRST_FREE_PORT)

    def open(self, opener: int, name: str) -> StoredValues:
        """The store that is opened under that name: what somebody opens again, when all have
        closed the first, is another one."""
        self._opened[opener, name] += 1
        return self.at(f"{name}, number {self._opened[opener, name]}")

    def at(self, name: str) -> StoredValues:
        """The store of that name, the same however often it is asked for."""
        return self._values.setdefault(name, StoredValues(name))

    def end(self, master: int) -> None:
        """Let those of a master be gone, whose process has ended."""
        self._values = {n: kept for n, kept in self._values.items() if kept.master != master}

    def free_port(self) -> int:
        """A port that no other store has."""
        return next(self._free_ports)


class HasStores(Protocol):
    """A world: what its ranks share."""

    @property
    def opened(self) -> OpenStores:
        """Those that its ranks have opened."""


class WaitsInTurn(Protocol):
    """A rank, as far as a store needs one."""

    @property
    def opener(self) -> int:
        """Which it is."""

    @property
    def host_thread(self) -> HostThread:
        """Its time."""

    @property
    def world(self) -> HasStores:
        """What it shares with others."""

    def wait(
        self,
        ready: Callable[[], bool],
        text: str,
        *,
        polite: bool = False,
        timeout: timedelta | None = None,
    ) -> str:
        """Let others run until `ready()`; who waits where, if the time was over before."""


class RankStore(dist.Store):
    """A store as the ranks of one world share it. Threads that are no rank must not wait in it."""

    def __init__(self, kept: StoredValues, here: threading.local) -> None:
        super().__init__()
        self._kept, self._here = kept, here
        self._timeout = TIMEOUT
        kept.opened.append(self)

    @property
    def timeout(self) -> timedelta:
        """How long a wait lasts at most, in simulated time."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Take note of another."""
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Let a key have a value."""
        self._kept.values[key] = _encoded(value)
        self._changed(key)

    def get(self, key: str) -> bytes:
        """The value of a key, as soon as it has one."""
        self._wait_for([key], "get")
        self._asked("get", key)
        return self._kept.values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Let others run until all of these have values."""
        self._wait_for(keys, "wait", timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these have values: who is told so goes on no earlier than they had."""
        self._asked("check", *keys)
        if not self._has(keys):
            return False
        for key in keys:
            self._not_before(key)
        return True

    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key has, at first 0; returns the sum."""
        if not amount and key in self._kept.values:
            self._asked("add", key)
            return int(self._kept.values[key])
        total = int(self._kept.values.get(key, b"0")) + amount
        self.set(key, str(total))
        return total

    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of what a key has."""
        self.set(key, self._kept.values.get(key, b"") + _encoded(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Exchange a value if it is what was expected; returns what it is now."""
        self._asked("compare_set", key, expected, desired)
        found = self._kept.values.get(key)
        if found is None and _encoded(expected):
            return _encoded(expected)
        if found is None or found == _encoded(expected):
            self.set(key, desired)
        return self._kept.values[key]

    def delete_key(self, key: str) -> bool:
        """Take a key away; whether it was there."""
        found = self._kept.values.pop(key, None) is not None
        if found:
            self._changed(key)
            del self._kept.since_s[key]
        return found

    def num_keys(self) -> int:
        """How many keys have values."""
        self._asked("num_keys")
        return len(self._kept.values)

    def list_keys(self) -> list[str]:
        """Those that have values."""
        self._asked("list_keys")
        return list(self._kept.values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, as soon as all have one."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Let several keys have values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Add a value to a queue."""
        self._kept.queues[key].append(_encoded(value))
        self._changed(key)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the oldest value from a queue, as soon as there is one.

        Raises QueueEmptyError if there is none and `block` is False.
        """
        queue = self._kept.queues[key]
        if not queue and not block:
            raise dist.QueueEmptyError(f"queue {key!r} is empty")
        self._until(lambda: bool(queue), f"queue_pop({key!r}) of {self._kept.name}", [key])
        self._not_before(key)
        return queue.pop(0)

    def queue_len(self, key: str) -> int:
        """How many values are in a queue."""
        self._asked("queue_len", key)
        return len(self._kept.queues[key])

    def has_extended_api(self) -> bool:
        """Whether it can append, and get and set several at once."""
        return True

    def clone(self) -> RankStore:
        """The same store."""
        return RankStore(self._kept, self._here)

    def _wait_for(self, keys: Sequence[str], call: str, timeout: timedelta | None = None) -> None:
        text = f"{call}({', '.join(map(repr, keys))}) of {self._kept.name}"
        self._until(lambda: self._has(keys), text, keys, timeout)
        for key in keys:
            self._not_before(key)

    def _until(
        self,
        ready: Callable[[], bool],
        text: str,
        keys: Sequence[str],
        timeout: timedelta | None = None,
    ) -> None:
        rank, report = self._rank(), ""
        timeout = self._timeout if timeout is None else timeout
        limit_s = self._now_s() + timeout.total_seconds()
        if not ready():
            if rank is None:
                raise RuntimeError(f"{text}: nobody has set it, and this thread is no rank's")
            report = rank.wait(ready, text, timeout=timeout)
        late = [key for key in keys if self._kept.since_s.get(key, 0.0) > limit_s]
        if rank is not None and late and not report:
            rank.host_thread.now_s = limit_s
            report = (
                f"{late[0]!r} is set {self._kept.since_s[late[0]] - limit_s:.4g} s later, in "
                "simulated time: set it earlier, or wait longer: TCPStore(timeout=…), "
                "set_timeout(…), wait(keys, timeout)"
            )
        if report:
            names = ", ".join(f"/{key}" for key in keys)
            raise dist.DistStoreError(
                f"wait timeout after {milliseconds(timeout)}ms, keys: {names}\n{report}"
            )

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._kept.values for key in keys)

    def _changed(self, key: str) -> None:
        self._kept.changes += 1
        self._kept.set_s[key] = self._now_s()
        self._kept.since_s.setdefault(key, self._now_s())

    def _asked(self, *question: object) -> None:
        """Let others go on, if a rank has asked this before and nothing has changed since: so a
        program waits that asks until the answer is another."""
        rank = self._rank()
        if rank is None:
            return
        if self._kept.asked.get(rank) == (question, self._kept.changes):
            rank.wait(lambda: True, "a loop that asks a store", polite=True)
        self._kept.asked[rank] = question, self._kept.changes

    def _not_before(self, key: str) -> None:
        rank = self._rank()
        if rank is not None:
            rank.host_thread.now_s = max(rank.host_thread.now_s, self._kept.set_s[key])

    def _now_s(self) -> float:
        rank = self._rank()
        return 0.0 if rank is None else rank.host_thread.now_s

    def _rank(self) -> WaitsInTurn | None:
        found: WaitsInTurn | None = getattr(self._here, "rank", None)
        return found


class TCPStore(RankStore):
    """A RankStore with what programs ask of a TCPStore."""

    def __init__(
        self,
        kept: StoredValues,
        here: threading.local,
        host: str,
        port: int,
        *,
        by_libuv: bool = True,
    ) -> None:
        super().__init__(kept, here)
        self.host, self.port = host, port
        self.libuvBackend = by_libuv

    def clone(self) -> RankStore:
        """The same store."""
        by_libuv = self.libuvBackend
        return TCPStore(self._kept, self._here, self.host, self.port, by_libuv=by_libuv)


class FileStore(RankStore):
    """A RankStore with what programs ask of a FileStore."""

    def __init__(self, kept: StoredValues, here: threading.local, path: str) -> None:
        super().__init__(kept, here)
        self.path = path

    def clone(self) -> RankStore:
        """The same store."""
        return FileStore(self._kept, self._here, self.path)


def open_tcp_store(
    here: threading.local,
    *,
    host: str,
    port: int,
    size: int | None,
    is_master: bool,
    timeout: timedelta,
    waits: bool,
    by_libuv: bool,
) -> TCPStore:
    """The TCPStore that the rank of `here` opens, when all of `size` have come to its master, or
    there is one. Raises what torch's does where they do not come."""
    rank: WaitsInTurn = here.rank
    opened = rank.world.opened
    port = port or opened.free_port()
    kept = opened.open(rank.opener, f"the TCPStore at port {port}")
    kept.joined += 1
    if is_master and kept.master is None:
        kept.master = rank.opener
    if is_master and waits and size:
        text = f"{kept.name}, for {size} ranks to open it"
        if report := rank.wait(lambda: kept.joined >= size, text, timeout=timeout):
            raise dist.DistStoreError(
                f"Timed out after {timeout.total_seconds():g} seconds waiting for clients. "
                f"{kept.joined}/{size} clients joined.\n{report}"
            )
    elif not is_master:
        text = f"{kept.name}, which needs a rank with is_master"
        if report := rank.wait(lambda: kept.master is not None, text, timeout=timeout):
            raise dist.DistNetworkError(
                f"The client socket has timed out after {milliseconds(timeout)}ms while "
                f"trying to connect to ({host}, {port}).\n{report}"
            )
    store = TCPStore(kept, here, host, port, by_libuv=by_libuv)
    store.set_timeout(timeout)
    return store


def open_file_store(here: threading.local, path: str) -> FileStore:
    """The FileStore that the rank of `here` opens."""
    rank: WaitsInTurn = here.rank
    return FileStore(rank.world.opened.open(rank.opener, f"the FileStore in {path}"), here, path)


def milliseconds(time: timedelta) -> int:
    """As torch's errors have it."""
    return round(time.total_seconds() * 1e3)


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
