"""Operators that a program defines (`torch.library`): each rank has its own kernels of them.

torch registers them once a process. Ranks share one, and each runs the program's definitions: the
second would take the first's operator away while that still calls it. So an operator is defined by
the first rank that does, with kernels that call those of whichever rank runs, and goes with the
last. What a library registers whose modules all ranks share is shared, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FrameType
from typing import Any

import torch

from ...torch_backend.private import torch_operators
from ..state.own_modules import is_shared
from ..world.rank import Rank, here

Kernel = Callable[..., object]
Key = tuple[str, str]  # an operator's name, without the namespace, and a dispatch key

_OURS = f"{__name__.partition('.')[0]}."


class _Operator:
    """One that ranks share: its schema, and by key the kernels of each rank."""

    def __init__(self, namespace: str, name: str, schema: str, library: Any) -> None:
        self.namespace, self.name = namespace, name
        self.schema, self.library = schema, library
        self.owners: set[Rank] = set()
        self._kernels: dict[Key, dict[Rank, Kernel]] = {}
        self._counts_writes = False

    def add(self, rank: Rank, key: Key, kernel: Kernel, *, with_keyset: bool) -> None:
        """Let a rank have a kernel."""
        if kernel is torch.library.fallthrough_kernel:  # no code, but a mark
            self.library.impl(*key, kernel, with_keyset)
        elif key in self._kernels:
            self._kernels[key][rank] = kernel
        else:
            self._kernels[key] = {rank: kernel}
            self.library.impl(*key, partial(self._run, key), with_keyset)

    def count_writes(self) -> None:
        """Let autograd count what it writes; said again, it would take kernels away."""
        if not self._counts_writes:
            self._counts_writes = True
            self.library.register_ad_inplace_or_view_fallback(self.name)

    def forget(self, rank: Rank) -> None:
        """A rank has it no more."""
        self.owners.discard(rank)
        for kernels in self._kernels.values():
            kernels.pop(rank, None)

    def end(self) -> None:
        """Take it from torch."""
        self.library.reset()
        torch_operators.forget_operator(self.namespace, self.name)

    def _run(self, key: Key, *args: object, **kwargs: object) -> object:
        """The kernel of this rank; of one that its parent was forked with, the parent's."""
        kernels = self._kernels[key]
        rank: Rank | None = getattr(here, "rank", None)
        own = kernels.get(rank) if rank is not None else None
        return (own or next(iter(kernels.values())))(*args, **kwargs)


class OwnOperators:
    """Those of all ranks that run."""

    def __init__(self) -> None:
        self._operators: dict[str, _Operator] = {}
        self._libraries: dict[tuple[Rank, str], torch.library.Library] = {}
        self._entries: dict[str, dict[Rank, Any]] = {}
        self._make_library: Callable[..., Any] = lambda *place: None

    def making_library(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """What takes the place of torch's C++, which makes a library, on a rank."""
        self._make_library = theirs

        @wraps(theirs)
        def make(kind: str, *place: object) -> object:
            if _is_shared():
                return theirs(kind, *place)
            return _LibraryOfRank(self, theirs, kind, *place)

        return make

    def of_operator(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """The same for the library of one operator, which may be defined anew by the same rank."""

        @wraps(theirs)
        def library(namespace: str, name: str) -> torch.library.Library:
            if _is_shared():
                return theirs(namespace, name)
            key = here.rank, f"{namespace}::{name}"
            libraries = torch_operators.libraries_of_operators()
            if key in self._libraries:
                torch_operators.destroy_library(self._libraries.pop(key))
            if libraries.get(key[1]) in self._libraries.values():  # another rank's stays
                del libraries[key[1]]
            self._libraries[key] = made = theirs(namespace, name)
            return made

        return library

    def finding(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """What is registered besides kernels: each rank has its own of these operators."""

        @wraps(theirs)
        def find(registry: object, name: str) -> Any:
            if name not in self._operators:
                return theirs(registry, name)
            entries = self._entries.setdefault(name, {})
            if here.rank not in entries:
                entries[here.rank] = torch_operators.OperatorEntry(name)
            return entries[here.rank]

        return find

    def define(self, rank: Rank, namespace: str, schema: str, *more: object) -> str:
        """Let a rank have an operator; returns its name, without the namespace.

        Raises RuntimeError if another rank has defined it with another schema.
        """
        name = schema.partition("(")[0].split("::")[-1].strip()
        known = self._operators.get(f"{namespace}::{name}")
        if known is None:
            library = self._make_library("FRAGMENT", namespace, "", __file__, 0)
            library.define(schema, *more)
            known = _Operator(namespace, name, schema, library)
            self._operators[f"{namespace}::{name}"] = known
        elif rank in known.owners:
            known.library.define(schema, *more)  # twice, which torch refuses
        elif not torch_operators.are_equal_schemas(known.schema, schema):
            raise RuntimeError(
                f"rank {rank.number} defines the operator {namespace}::{name} as {schema!r}, and "
                f"another rank as {known.schema!r}: on virtual ranks all must define it alike. "
                "Give the two different names"
            )
        known.owners.add(rank)
        return name

    def operator(self, namespace: str, name: str) -> _Operator | None:
        """One that ranks have defined."""
        return self._operators.get(f"{namespace}::{name.split('::')[-1]}")

    def forget(self, rank: Rank, namespace: str, names: Sequence[str]) -> None:
        """Let a rank have these no more; the last takes them with it."""
        for name in names:
            operator = self.operator(namespace, name)
            if operator is not None:
                operator.forget(rank)
                if not operator.owners:
                    operator.end()
                    del self._operators[f"{namespace}::{name}"]
                    self._entries.pop(f"{namespace}::{name}", None)

    def end(self) -> None:
        """Let nobody have any, as the ranks are over."""
        libraries = torch_operators.libraries_of_operators()
        for (_, name), library in self._libraries.items():
            if libraries.get(name) is library:
                del libraries[name]
            torch_operators.destroy_library(library)
        self._libraries.clear()
        for operator in self._operators.values():
            operator.end()
        self._operators.clear()
        self._entries.clear()


def _is_shared() -> bool:
    """Whether what registers here runs once for all ranks."""
    frame: FrameType | None = _getframe(2)
    while frame is not None and _registers_for_others(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame is not None and is_shared(frame)


def _registers_for_others(module: str) -> bool:
    return module.startswith(_OURS) or torch_operators.is_of_libraries(module)


class _LibraryOfRank:
    """What a `torch.library.Library` of a rank has in C++: what that rank registers."""

    def __init__(
        self, operators: OwnOperators, theirs: Callable[..., Any], kind: str, *place: object
    ) -> None:
        self._operators, self._rank = operators, here.rank
        self._namespace = str(place[0])
        self._defined: list[str] = []
        # A namespace has one library that defines it, and each rank may make that.
        self._library = theirs("FRAGMENT" if kind == "DEF" else kind, *place)

    def define(self, schema: str, *more: object) -> str:
        """Define an operator for this rank."""
        name = self._operators.define(self._rank, self._namespace, schema, *more)
        self._defined.append(name)
        return name

    def impl(self, name: str, key: str, kernel: Kernel, with_keyset: bool = False) -> None:
        """Give this rank a kernel; one of an operator that torch has is given to all."""
        operator = self._operators.operator(self._namespace, name)
        if operator is None:
            self._library.impl(name, key, kernel, with_keyset)
        else:
            short = name.split("::")[-1]
            operator.add(self._rank, (short, key), kernel, with_keyset=with_keyset)

    def register_ad_inplace_or_view_fallback(self, name: str) -> None:
        """Let autograd count what an operator writes."""
        operator = self._operators.operator(self._namespace, name)
        if operator is None:
            self._library.register_ad_inplace_or_view_fallback(name)
        else:
            operator.count_writes()

    def reset(self) -> None:
        """Take it all back."""
        self._operators.forget(self._rank, self._namespace, self._defined)
        self._defined = []
        self._library.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)
