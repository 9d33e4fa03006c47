"""What is sent to another process by value, and the name of what cannot be."""

from __future__ import annotations

import dis
import functools
import inspect
import io
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import ClassVar

import cloudpickle
import torch

VIRTUAL = "{device} is a virtual GPU of this process, and others have none: use a device of theirs"


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, but for virtual GPUs: their names would be sent, and mean nothing there."""

    dispatch_table: ClassVar = ChainMap(
        {torch.device: lambda device: reduced_device(device)}, cloudpickle.Pickler.dispatch_table
    )


def reduced_device(device: torch.device) -> tuple:
    """How a device is pickled; raises TypeError for a virtual one."""
    if device.type == "vgpu":
        raise TypeError(VIRTUAL.format(device=device))
    return device.__reduce__()


def dumps(thing: object) -> bytes:
    """A pickle of `thing`, in which what the notebook defines goes by value.

    Raises TypeError, or what a `__reduce__` raises, for what cannot be sent.
    """
    buffer = io.BytesIO()
    Pickler(buffer).dump(thing)
    return buffer.getvalue()


def can_be_dumped(thing: object) -> bool:
    """Whether `dumps` would raise nothing."""
    try:
        dumps(thing)
    except Exception:  # of whatever kind a `__reduce__` raises
        return False
    return True


def culprit(thing: object, can_be_sent: Callable[[object], bool]) -> list[str]:
    """The name of what a function uses and cannot be sent, then those of the functions that lead
    to it, the nearest first. Empty if no name leads there."""
    return [*_path(thing, can_be_sent, set())][::-1]


def globals_of(function: Callable[..., object]) -> dict[str, object]:
    """The global variables of a function, also of one that is wrapped, partial, or an object's."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    return getattr(function, "__globals__", {})


def name_of(function: Callable[..., object]) -> str:
    """The name that a function was defined with, or how it prints if it has none."""
    return getattr(function, "__name__", None) or repr(function)


def _path(thing: object, can_be_sent: Callable[[object], bool], seen: set[int]) -> Iterator[str]:
    seen.add(id(thing))
    for name, value in _used(thing):
        if id(value) in seen or can_be_sent(value):
            continue
        yield name
        yield from _path(value, can_be_sent, seen)
        return


def _used(thing: object) -> Iterator[tuple[str, object]]:
    """What a function uses from outside, by name: defaults, enclosing and global variables."""
    if isinstance(thing, functools.partial):
        yield from thing.keywords.items()
        yield from ((f"argument {i}", value) for i, value in enumerate(thing.args))
        yield name_of(thing.func), thing.func
    thing = getattr(thing, "__func__", thing)
    if not isinstance(thing, FunctionType):
        return
    code = thing.__code__
    arguments = code.co_varnames[: code.co_argcount]
    defaults = thing.__defaults__ or ()
    yield from zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    yield from (thing.__kwdefaults__ or {}).items()
    for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=True):
        if cell != CellType():  # nothing was assigned to it yet
            yield name, cell.cell_contents
    for name in _global_names(code):
        if name in thing.__globals__:
            yield name, thing.__globals__[name]


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
