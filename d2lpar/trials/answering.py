"""The answer's process: it reads an answer, and then calls it, as often as it is asked to.

It knows the names of trials and what it is asked, and writes plain data to one pipe. Whatever the
answer does here, to this code as well, nobody believes more of it than that.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import linecache
import math
import random
import types
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar

from . import plain, tampering
from .calling import NOTHING_YET, Fault, InProcess

FILENAME = "<your cell>"
MOST_PRINTED = 2000  # characters
TEXT_MISSING = "the cell has no function {name}"


class NoFunctionError(Exception):
    """The text defines no such function."""


class Server:
    """An answer between two pipes: what is asked comes from one, what comes of it goes into one."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._printed = Printed()
        self._own = InProcess(_nothing_in_cell)
        self._watched: tampering.State | None = None

    def serve(self) -> None:
        """Get ready, open what comes, and call it until nobody asks any more."""
        on_clock = plain.read(self._reading)
        self._reply(lambda: self._prepare(on_clock))
        name, text = plain.read(self._reading)
        with contextlib.redirect_stdout(self._printed), contextlib.redirect_stderr(self._printed):
            self._reply(lambda: self._open(name, text))
            while True:
                trial, arguments = plain.read(self._reading)
                self._reply(lambda: self._own.tried(trial_named(trial), *arguments))  # noqa: B023

    def _prepare(self, on_clock: bool) -> None:
        if on_clock:
            tampering.warm_up()
            self._watched = tampering.state()
        torch.manual_seed(0)
        random.seed(0)

    def _open(self, name: str, text: str) -> None:
        self._own = InProcess(defined(name, text))

    def _reply(self, work: Callable[[], object]) -> None:
        """Write what came of a piece of work: a value, or an error."""
        try:
            reply = {"value": work(), "returned": _described(self._own.returned)}
            if self._watched is not None:
                reply["changed"] = tampering.changed(self._watched)
            message = plain.packed(reply | {"printed": self._printed.getvalue()})
        except BaseException as error:  # SystemExit, too
            fault = error if isinstance(error, Fault) else self._own.fault(error)
            told = [fault.name, fault.text[:MOST_PRINTED], fault.where, fault.left_to_do]
            gone = fault.returned is NOTHING_YET
            reply = {"fault": told, "gone": gone, "returned": _described(fault.returned)}
            message = plain.packed(reply | {"printed": self._printed.getvalue()})
        plain.send(self._writing, message)


def _described(returned: object) -> object:
    """None for nothing; of anything else how it was printed."""
    if returned is None or returned is NOTHING_YET:
        return None
    return plain.Other(plain.type_name(returned), plain.shown(returned))


def trial_named(trial: str) -> Callable:
    """The trial of this name: "multi_gpu_from_scratch.accumulate"."""
    module, _, name = trial.rpartition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


class Printed(io.StringIO):
    """The beginning of what is printed: no more is kept of an answer that prints for ever."""

    def write(self, text: str) -> int:
        """Keep what there is room for; how long the text was."""
        super().write(text[: max(0, MOST_PRINTED - self.tell())])
        return len(text)


class NoShell:
    """Takes what a cell asks of IPython, and does nothing of it: there is no notebook here."""

    def run_line_magic(self, *_: object) -> None:
        """For `%magic`."""

    run_cell_magic = system = run_line_magic

    def getoutput(self, *_: object) -> list[str]:
        """For `files = !ls`."""
        return []


def defined(name: str, text: str) -> Callable:
    """The student's function, in a module of its own. Raises NoFunctionError."""
    lines = [f"{line}\n" for line in text.split("\n")]
    linecache.cache[FILENAME] = (len(text), None, lines, FILENAME)
    names = vars(types.ModuleType("answer"))
    names.update(torch=torch, nn=nn, F=F, dist=dist, math=math, par=d2lpar)
    names["get_ipython"] = NoShell
    for node in ast.parse(text, FILENAME).body:
        code = compile(ast.Module([node], []), FILENAME, "exec")
        # A line of the cell that needs what other cells have made is none of the function's.
        with contextlib.suppress(NameError):
            exec(code, names)
    if not callable(names.get(name)):
        raise NoFunctionError(TEXT_MISSING.format(name=name))
    return names[name]


def _nothing_in_cell() -> None:
    """Stands for an answer that is not there yet: errors of its cell are of the same file."""


_nothing_in_cell.__code__ = _nothing_in_cell.__code__.replace(co_filename=FILENAME)
