"""Functions of a notebook for processes of their own, which cannot import them by their names.

A process started by "spawn" or "forkserver" is sent its function by name, so that one defined in a
notebook cannot be found there. `portable` sends it by value, with what it uses of the notebook.
"""

from __future__ import annotations

import dis
import functools
import io
import linecache
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import ClassVar

Source = dict[str, list[str]]  # the lines of cells, by the names that Python gives them


def portable(function: Callable) -> Callable:
    """`function`, to be run in a process of its own wherever it was defined.

        mp.spawn(par.portable(train), args=(w,), nprocs=2)
        mp.get_context("spawn").Process(target=par.portable(train), args=(0, w))

    What it uses of the notebook by name (functions, classes, variables) goes along, as it is when
    the process starts; modules are imported there, and nothing else is. All of it is sent as
    `torch.multiprocessing` sends arguments: tensors are shared, not copied, and so are queues and
    locks made by the same kind of context. Arguments may be objects of classes that the notebook
    has defined by then, such as a network; a function among them must be made portable, too. A
    plain variable that the process changes is its own.

    The function may return nothing and should not print: what processes print appears in a
    notebook's cell in no particular order, or later. Return results in tensors or a queue. In a
    script, "spawn" runs the script itself in every process first, so that what starts processes
    belongs under `if __name__ == "__main__":`, with `portable` or without.

    Raises ValueError, with the variable's name, when a process is started and something that the
    function uses cannot be sent: an open file, a lock of `threading`, a tensor on a virtual GPU.
    """
    if not callable(function):
        raise ValueError(f"portable(function) takes a function, not {function!r}")
    _know_classes()
    return Portable(function)


class Portable:
    """Called like its function, and received as that function by another process."""

    def __init__(self, function: Callable) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple:
        try:
            return _received, _sent(self._function)
        except Exception as error:
            raise ValueError(_explained(self._function, error)) from error


# --- sending --------------------------------------------------------------------------------------


def _sent(thing: object) -> tuple[bytes, Source]:
    """A pickle of `thing`, in which nothing is found by name that a new process does not have, and
    the cells that it comes from, for tracebacks."""
    import cloudpickle

    files: set[str] = set()
    # These go before cloudpickle's own, which sends a copy of an open file.
    reducers = {io.TextIOWrapper: _refuse_file, **ForkingPickler._extra_reducers}
    own = {kind: how for kind, how in reducers.items() if how is not _by_value}

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar = ChainMap(own, cloudpickle.Pickler.dispatch_table)

        def reducer_override(self, obj: object) -> object:
            if isinstance(obj, FunctionType):
                files.add(obj.__code__.co_filename)
            for name in ("stdout", "stderr"):
                if obj is getattr(sys, name):
                    return getattr, (sys, name)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer).dump(thing)
    lines = {name: linecache.getlines(name) for name in files if not Path(name).exists()}
    return buffer.getvalue(), {name: cell for name, cell in lines.items() if cell}


def _received(pickled: bytes, source: Source) -> object:
    for name, lines in source.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return pickle.loads(pickled)


def _refuse_file(file: io.TextIOWrapper) -> tuple:
    raise TypeError(f"{file.name!r} is an open file")


def _know_classes() -> None:
    """Let arguments be objects of classes that the notebook has defined so far."""
    for value in list(vars(sys.modules["__main__"]).values()):
        if isinstance(value, type) and value.__module__ == "__main__":
            ForkingPickler.register(value, _by_value)


def _by_value(thing: object) -> tuple:
    return _received, _sent(thing)


# --- saying what cannot be sent -------------------------------------------------------------------


def _explained(function: Callable, error: Exception) -> str:
    path = list(_culprit(function, set()))
    text = f"{_name(function)} cannot be sent to another process"
    if path:
        inner = "".join(f", used by {name}" for name in reversed(path[:-1]))
        text += f", for it uses {path[-1]}{inner}"
    return f"{text} ({error}): make it inside the function, or leave it out"


def _name(function: Callable) -> str:
    return getattr(function, "__name__", None) or repr(function)


def _culprit(thing: object, seen: set[int]) -> Iterator[str]:
    """The name of what cannot be sent, after those of the functions that lead to it."""
    seen.add(id(thing))
    for name, value in _used(thing):
        if id(value) in seen or _can_be_sent(value):
            continue
        yield name
        yield from _culprit(value, seen)
        return


def _can_be_sent(value: object) -> bool:
    try:
        _sent(value)
    except Exception:  # of whatever kind a `__reduce__` raises
        return False
    return True


def _used(thing: object) -> Iterator[tuple[str, object]]:
    """What a function uses from outside, by name: defaults, enclosing and global variables."""
    if isinstance(thing, functools.partial):
        yield from thing.keywords.items()
        yield from ((f"argument {i}", value) for i, value in enumerate(thing.args))
        yield _name(thing.func), thing.func
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
