"""What DTensor keeps once a process, and virtual ranks exchange: private parts of torch.

`loss_parallel` and `context_parallel` replace functions and rules for a while; another rank, whose
turn comes meanwhile, must find what it has left. So does DTensor's keeper of random numbers.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.nn.functional

TENSORS = "torch.distributed.tensor"
DTENSOR = (TENSORS, "DTensor")
RANDOM = (f"{TENSORS}._random", "OffsetBasedRNGTracker")  # the class of that keeper
_EXPERIMENTAL = f"{TENSORS}.experimental"
_CONTEXT_PARALLEL = (f"{_EXPERIMENTAL}._context_parallel._attention", f"{_EXPERIMENTAL}._attention")
_RULES = f"{_EXPERIMENTAL}._context_parallel._sharding_rules"


def sharding_propagator() -> tuple[Any, str]:
    """What works out how results are sharded, and the name of its method, which asks no cache."""
    propagator = sys.modules[TENSORS].DTensor._op_dispatcher.sharding_propagator
    return propagator, "propagate_op_sharding_non_cached"


class _Kept(Protocol):
    """Something that is kept once a process."""

    def get(self) -> object:
        """What it is now."""

    def set(self, value: Any) -> None:
        """Let it be that again."""


class _Attribute:
    def __init__(self, owner: object, name: str) -> None:
        self._owner, self._name = owner, name

    def get(self) -> object:
        value = getattr(self._owner, self._name)
        return dict(value) if type(value) is dict else value

    def set(self, value: Any) -> None:
        setattr(self._owner, self._name, dict(value) if type(value) is dict else value)


class _Entries:
    """Those of a dictionary; of some keys, or all."""

    def __init__(self, entries: dict, keys: Iterable[object] | None = None) -> None:
        self._entries = entries
        self._keys = None if keys is None else list(keys)

    def get(self) -> dict:
        if self._keys is None:
            return dict(self._entries)
        return {key: self._entries[key] for key in self._keys if key in self._entries}

    def set(self, value: dict) -> None:
        for key in list(self._entries) if self._keys is None else self._keys:
            if key not in value:
                self._entries.pop(key, None)
        self._entries.update(value)


class _ImplicitReplication:
    """Whether plain tensors may meet DTensors."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def get(self) -> object:
        return self._dispatcher._allow_implicit_replication

    def set(self, value: Any) -> None:
        if value != self.get():
            self._dispatcher._allow_implicit_replication = value


class LibraryAsImported:
    """What the library keeps when it has just been imported: that of a process which begins."""

    def __init__(self) -> None:
        self.kept: list[_Kept] = []
        self.values: list[object] = []

    def load(self) -> None:
        """Import the library, if that has not been done; the first rank that may use it does."""
        if not self.kept:
            for name in (_EXPERIMENTAL, *_CONTEXT_PARALLEL, _RULES):
                with contextlib.suppress(ModuleNotFoundError):  # a torch that has it elsewhere
                    importlib.import_module(name)
            self.kept = list(_everything())
            self.values = [each.get() for each in self.kept]


class LibraryState:
    """What the library keeps for one process."""

    def __init__(self, as_imported: LibraryAsImported) -> None:
        self._as_imported = as_imported
        self._values: list[object] = []

    def save(self) -> None:
        """Keep what the running process has."""
        self._values = [each.get() for each in self._as_imported.kept]

    def restore(self) -> None:
        """Let the running process have what was kept."""
        kept, at_first = self._as_imported.kept, self._as_imported.values
        for each, value in zip(kept, self._values or at_first, strict=True):
            each.set(value)


def _everything() -> Iterator[_Kept]:
    dispatcher = sys.modules[TENSORS].DTensor._op_dispatcher
    yield _Attribute(sys.modules[RANDOM[0]], "_rng_tracker")
    yield _ImplicitReplication(dispatcher)
    yield _Attribute(torch.nn.functional, "scaled_dot_product_attention")
    losses = importlib.import_module(f"{TENSORS}.parallel.loss")
    yield _Entries(dispatcher._custom_op_handlers, losses.customized_loss_ops)
    yield _HandlersInUse(dispatcher)
    for module in _loaded(*_CONTEXT_PARALLEL):
        yield from _of_context_parallelism(module, dispatcher)
    for module in _loaded(_RULES):
        yield _Attribute(module, "_cp_strategy_contexts")
        yield _Attribute(module, "_original_strategies")


class _HandlersInUse:
    """Which dictionary of handlers is in use: to the library, its identity matters."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def get(self) -> object:
        return self._dispatcher._custom_op_handlers

    def set(self, value: Any) -> None:
        self._dispatcher._custom_op_handlers = value


def _of_context_parallelism(module: ModuleType, dispatcher: Any) -> Iterator[_Kept]:
    if not hasattr(module, "_replaced_functions"):  # it only names what another module has
        return
    yield _Attribute(module, "_dispatch_mode")
    yield _Attribute(module, "_replaced_functions")
    yield _Entries(vars(module._cp_options))
    for of_operations in vars(dispatcher.sharding_propagator).values():
        if type(of_operations) is dict:
            yield _Entries(of_operations, module.custom_ops)


def _loaded(*names: str) -> list[ModuleType]:
    return [sys.modules[name] for name in names if name in sys.modules]
