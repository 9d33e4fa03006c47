"""`multiprocessing.Manager`: dictionaries, lists and other objects that virtual processes share.

As with a manager's proxies, what is put into one and what is read from it are copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import managers, sharedctypes
from types import SimpleNamespace
from typing import Any

from . import queues, synchronizers
from .shared import Parcel, Shared


class Proxy(Shared):
    """An object that is shared: calls of its public methods go through, with copies."""

    def __init__(self, run_children: Callable[[], None], shared: Any) -> None:
        super().__init__(run_children)
        self._shared = shared

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A copy of what a method returns, given copies."""
        args, kwargs = Parcel((args, kwargs)).open()  # type: ignore[misc]
        found = getattr(self._shared, name)(*args, **kwargs)
        if name in ("keys", "values", "items"):
            found = list(found)
        return self if found is self._shared else Parcel(found).open()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(self._shared, name)):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<proxy of {self._shared!r}>"

    def __str__(self) -> str:
        return str(self._shared)


def _through(name: str) -> Callable[..., Any]:
    return lambda self, *args: self.call(name, *args)


class ContainerProxy(Proxy):
    """A shared dictionary or list."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._copy()))

    def _copy(self) -> Any:
        return Parcel(self._shared).open()

    def __eq__(self, other: object) -> bool:
        return bool(self._shared == (other._shared if isinstance(other, Proxy) else other))

    __hash__ = None  # type: ignore[assignment]  # as of what it stands for


for _name in ("contains", "delitem", "getitem", "len", "setitem", "add", "mul", "iadd", "imul"):
    setattr(ContainerProxy, f"__{_name}__", _through(f"__{_name}__"))


class NamespaceProxy(Shared):
    """A shared namespace, whose attributes are copies."""

    def __init__(self, run_children: Callable[[], None], values: dict[str, Any]) -> None:
        super().__init__(run_children)
        vars(self)["_values"] = SimpleNamespace(**values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Parcel(getattr(self._values, name)).open()

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            vars(self)[name] = value
        else:
            setattr(self._values, name, Parcel(value).open())

    def __delattr__(self, name: str) -> None:
        delattr(self._values, name)


class VirtualManager(Shared):
    """`multiprocessing.Manager()`, without a server of its own."""

    def start(self, *args: object, **kwargs: object) -> None:
        """Nothing is left to start."""

    shutdown = join = connect = start

    def __enter__(self) -> VirtualManager:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def dict(self, *args: Any, **kwargs: Any) -> ContainerProxy:
        """A shared dictionary."""
        return ContainerProxy(self._run_children, dict(*args, **kwargs))

    def list(self, *args: Any) -> ContainerProxy:
        """A shared list."""
        return ContainerProxy(self._run_children, list(*args))

    def Namespace(self, **values: Any) -> NamespaceProxy:  # noqa: N802, as multiprocessing calls it
        """A shared namespace."""
        return NamespaceProxy(self._run_children, values)

    def __getattr__(self, name: str) -> Any:
        if name in MAKERS:
            return lambda *args, **kwargs: MAKERS[name](self._run_children, *args, **kwargs)
        if hasattr(managers.SyncManager, name):
            raise NotImplementedError(
                f"a manager's {name} is not emulated between virtual processes: use its dict, "
                "list, Namespace, Queue, Lock or Event"
            )
        raise AttributeError(name)


def _ignoring_size(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda run_children, *args, **kwargs: make(run_children)


def _value(run_children: Callable[[], None], kind: Any, *args: Any, lock: Any = True) -> Any:
    """`multiprocessing.Value`: a number of C in memory that processes share."""
    return _locked(run_children, sharedctypes.RawValue(kind, *args), lock)


def _array(run_children: Callable[[], None], kind: Any, size: Any, *, lock: Any = True) -> Any:
    """`multiprocessing.Array`: numbers of C in memory that processes share."""
    return _locked(run_children, sharedctypes.RawArray(kind, size), lock)


def _locked(run_children: Callable[[], None], raw: Any, lock: Any) -> Any:
    if lock is False:
        return raw
    own: Any = synchronizers.VirtualRLock(run_children)
    return sharedctypes.synchronized(raw, own if lock in (True, None) else lock)


# What makes each of multiprocessing's objects, by its name there.
MAKERS: dict[str, Callable[..., Any]] = {
    "Queue": _ignoring_size(queues.VirtualQueue),
    "SimpleQueue": _ignoring_size(queues.VirtualQueue),
    "JoinableQueue": _ignoring_size(queues.VirtualQueue),
    "Pipe": queues.pipe,
    "Lock": synchronizers.VirtualLock,
    "RLock": synchronizers.VirtualRLock,
    "Semaphore": synchronizers.VirtualSemaphore,
    "BoundedSemaphore": lambda run, value=1: synchronizers.VirtualSemaphore(run, value, value),
    "Event": synchronizers.VirtualEvent,
    "Condition": synchronizers.VirtualCondition,
    "Barrier": synchronizers.VirtualBarrier,
    "Value": _value,
    "Array": _array,
    "Manager": VirtualManager,
}
