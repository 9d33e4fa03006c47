"""What single operations take, where they are called, and what memory they use: for profiles.

It is noted only while a profile runs. An operation's memory is what its device holds more when it
has ended; what has changed there since the operation before it, as the program has dropped tensors,
is noted apart, and so is what was made by calls that take no time, such as `torch.empty`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...memory.caching_allocator import CachingAllocator
from ...memory.memory_history import Stack, stack_here
from ..private import torch_operators

Shapes = list  # of an argument: sizes, a list of them of a list of tensors, [] of what is no tensor


@dataclass(slots=True)
class OpDetails:
    """Of one operation: its arguments' `shapes` and `kinds`, the `stack` that led to it, and by
    device the bytes that it has left allocated (`taken`), or that were freed or allocated outside
    of operations before it (`beside`). `made` are devices and bytes of the empty tensors since the
    one before it.

    `call` is the operator that torch runs around a collective, whose name for profilers is `title`.
    """

    shapes: list[Shapes] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    stack: Stack = ()
    taken: dict[int, int] = field(default_factory=dict)
    beside: dict[int, int] = field(default_factory=dict)
    made: list[tuple[int, int]] = field(default_factory=list)
    call: str = ""
    title: str = ""


@dataclass(frozen=True)
class Wanted:
    """What a profile wants to know of operations besides their times."""

    shapes: bool = False
    stacks: bool = False
    memory: bool = False


class _Thread(threading.local):
    details: OpDetails | None = None


_here = _Thread()


def running() -> OpDetails | None:
    """Those of the operation that this thread carries out, as far as a profile wants them."""
    return _here.details


@contextmanager
def carrying_out(details: OpDetails | None) -> Iterator[None]:
    """In this block work is queued that is of this operation (None: not of the one that runs)."""
    before, _here.details = _here.details, details
    try:
        yield
    finally:
        _here.details = before


class OpDetailsRecorder:
    """Notes the details of operations for the profiles that run: `wanted`, one of each."""

    def __init__(self, memories: Sequence[CachingAllocator]) -> None:
        self.wanted: list[Wanted] = []
        self._memories = memories
        self._last: list[int] = []  # bytes of each device, as far as changes are noted
        self._beside: Counter[int] = Counter()  # what no operation's details have yet
        self._made: list[tuple[int, int]] = []

    def begin(self, wanted: Wanted, device: int) -> None:
        """Note from now on what a profile wants, of a process that uses `device`."""
        if not self.wanted:
            self._last = self._levels()
            self._beside.clear()
            self._made.clear()
        self._note_changes()
        self._beside.pop(device, None)  # before it; others may go on meanwhile
        self.wanted.append(wanted)

    def end(self, wanted: Wanted) -> None:
        """Note it for this profile no more."""
        self.wanted.remove(wanted)

    def noted(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, run: Callable) -> Any:
        """The result of `run()`, which carries out an operation."""
        details, outer = self._begun(), _here.details
        if self._wants("shapes"):
            details.shapes, details.kinds = _inputs(_in_order(func, args, kwargs))
        before = self._note_changes(of_operation=outer is not None) if self._wants("memory") else []
        with carrying_out(details):
            result = run()
        if before:
            self._note_memory(details, outer, before, tree_leaves((args, kwargs, result)))
        return result

    @contextmanager
    def of_collective(
        self, call: str, title: str, tensors: Sequence[torch.Tensor]
    ) -> Iterator[None]:
        """In this block a collective is queued that gives these tensors to others."""
        if not self.wanted:
            yield
            return
        details = self._begun()
        details.call, details.title = call, title
        if self._wants("shapes"):
            details.shapes, details.kinds = _inputs(tensors)
        with carrying_out(details):
            yield

    @contextmanager
    def of_empty(self, device: int) -> Iterator[None]:
        """In this block memory is allocated for a tensor without values."""
        before = self._memories[device].allocated_bytes
        yield
        if _here.details is None:  # otherwise it is part of an operation
            taken = self._memories[device].allocated_bytes - before
            self._made.append((device, taken))
            self._beside[device] -= taken  # when it is seen that the device holds more

    def rest(self) -> OpDetails:
        """What has changed since the last operations, at the end of a profile."""
        self._note_changes()
        return OpDetails(beside=dict(self._beside), made=list(self._made))

    def _begun(self) -> OpDetails:
        return OpDetails(stack=stack_here() if self._wants("stacks") else ())

    def _wants(self, what: str) -> bool:
        return any(getattr(wanted, what) for wanted in self.wanted)

    def _levels(self) -> list[int]:
        return [memory.allocated_bytes for memory in self._memories]

    def _note_changes(self, *, of_operation: bool = False) -> list[int]:
        """What devices hold now; what has changed is not of the next operation to begin."""
        now = self._levels()
        if not of_operation:
            self._last += now[len(self._last) :]  # of a machine that has grown
            for device, (nbytes, last) in enumerate(zip(now, self._last, strict=True)):
                if nbytes != last:
                    self._beside[device] += nbytes - last
            self._last = now
        return now

    def _note_memory(
        self, details: OpDetails, outer: OpDetails | None, before: list[int], values: list
    ) -> None:
        """Note what an operation has done to its devices; `outer` is one that it is a part of."""
        now = self._levels()
        mine = {v.vgpu_index for v in values if hasattr(v, "vgpu_index")}
        details.made = [empty for empty in self._made if empty[0] in mine]
        self._made = [empty for empty in self._made if empty[0] not in mine]
        for index in mine:
            details.beside[index] = self._beside.pop(index, 0)
            details.taken[index] = now[index] - before[index] + details.taken.get(index, 0)
            self._last[index] = now[index]
            if outer is not None:  # whose own this is not
                outer.taken[index] = outer.taken.get(index, 0) - (now[index] - before[index])


def _in_order(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> list[object]:
    """All arguments of an operation in the order of its schema, also those that are left out."""
    rest = torch_operators.schema_of(func).arguments[len(args) :]
    return [*args, *(kwargs.get(a.name, a.default_value) for a in rest)]


def _inputs(values: Sequence[object]) -> tuple[list[Shapes], list[str]]:
    return [_shapes(value) for value in values], [_kind(value) for value in values]


def _shapes(value: object) -> Shapes:
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
        return [_shapes(one) for one in value]
    return []


def _kind(value: object) -> str:
    """As torch's traces call it."""
    if isinstance(value, torch.Tensor):
        return _DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
    if isinstance(value, (list, tuple)):
        of_tensors = bool(value) and isinstance(value[0], torch.Tensor)
        return "TensorList" if of_tensors else "ScalarList"
    return "Scalar" if isinstance(value, (bool, int, float, complex)) else ""


_DTYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16", torch.int64: "long int", torch.int32: "int",
    torch.int16: "short int", torch.int8: "signed char", torch.uint8: "unsigned char",
    torch.bool: "bool", torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}  # fmt: skip
