"""Functions of a notebook for processes of their own, which cannot import them by their names.

A process started by "spawn" or "forkserver" is sent its function by name, so that one defined in a
notebook cannot be found there. `portable` sends it by value, with what it uses of the notebook.
"""

from __future__ import annotations

import functools
import io
import linecache
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType
from typing import ClassVar

import torch

from . import kernel_shutdown, pickling

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
    function uses cannot be sent: an open file, a lock of `threading`, a virtual GPU or a tensor on
    one. A virtual GPU among the arguments raises TypeError.
    """
    if not callable(function):
        raise ValueError(f"portable(function) takes a function, not {function!r}")
    _know_classes()
    kernel_shutdown.prepare()
    return Portable(function)


class Portable:
    """Called like its function, and received as that function by another process."""

    def __init__(self, function: Callable) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function in this process."""
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
    files: set[str] = set()
    # These go before cloudpickle's own, which sends a copy of an open file.
    reducers = {io.TextIOWrapper: _refuse_file, **ForkingPickler(io.BytesIO()).dispatch_table}
    own = {kind: how for kind, how in reducers.items() if how is not _by_value}

    class Pickler(pickling.Pickler):
        dispatch_table: ClassVar = ChainMap(own, pickling.Pickler.dispatch_table)

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
    """Let arguments be objects of classes that the notebook has defined so far, but no devices
    that are virtual."""
    ForkingPickler.register(torch.device, pickling.reduced_device)
    for value in list(vars(sys.modules["__main__"]).values()):
        if isinstance(value, type) and value.__module__ == "__main__":
            ForkingPickler.register(value, _by_value)


def _by_value(thing: object) -> tuple:
    return _received, _sent(thing)


# --- saying what cannot be sent -------------------------------------------------------------------


def _explained(function: Callable, error: Exception) -> str:
    text = f"{pickling.name_of(function)} cannot be sent to another process"
    path = pickling.culprit(function, _can_be_sent)
    if path:
        text += f", for it uses {', used by '.join(path)}"
    return f"{text} ({error}): make it inside the function, or leave it out"


def _can_be_sent(value: object) -> bool:
    try:
        _sent(value)
    except Exception:  # of whatever kind a `__reduce__` raises
        return False
    return True
