"""How processes come that a program starts: by its environment they find the run.

They are real ones, whatever starts them: multiprocessing, subprocess, torchrun. What is seen to
here is that times go on from one to the other: a process begins at the time of who starts it,
which goes on, when it has waited, no earlier than it ends. While it waits for others, or for what
they send, those go on whose turn would come after its own.
"""

from __future__ import annotations

import json
import multiprocessing.connection
import multiprocessing.process
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from typing import Any, Protocol

from ..patching import Patches

RUN = "D2LPAR_RUN"
STARTED = "D2LPAR_STARTED_S"  # when who starts a process does so, in simulated time
KEY = "D2LPAR_KEY"  # by which a process shows who has started it
FOUND_BY = ("PYTHONPATH", RUN, STARTED)
AT_START = str(Path(__file__).parent / "at_start")
LOADERS = "torch.utils.data"  # whose processes have no devices


@dataclass(frozen=True)
class Told:
    """What a process is told that a program of a run starts.

    `machine` is the file of the machine, of whose `gpus` it sees the `node`'s numbers; `folder`
    where values are exchanged, `door` where it calls; `records` says whether the run is recorded.
    """

    gpus: int
    machine: str
    node: Sequence[int]
    folder: str
    door: str
    records: bool = False
    shapes_only: bool = False
    hazards: bool = False


def door_of(folder: str) -> str:
    """Where processes call that have a folder in common: a socket there, on Windows a pipe."""
    if hasattr(socket, "AF_UNIX"):
        return os.path.join(folder, "door")
    return rf"\\.\pipe\{os.path.basename(folder)}"


class Parent(Protocol):
    """A process that may start others."""

    def starts(self) -> None:
        """It is about to start one."""

    def forks(self) -> None:
        """It is about to fork, whoever asks for that."""

    def rests(self) -> None:
        """It begins to wait for others."""

    def has_waited(self) -> None:
        """It has waited for others to end."""

    def has_forked(self) -> None:
        """It has been forked, and goes on as the fork."""


_parents: list[Parent] = []  # of this process: the last one


def become(parent: Parent) -> None:
    """Let this process be that from now on."""
    _parents.append(parent)


def leave(parent: Parent) -> None:
    """Let this process be what it was before."""
    _parents.remove(parent)


def current() -> Parent | None:
    """What this process is."""
    return _parents[-1] if _parents else None


def tell(told: Told) -> None:
    """Let processes that this one starts find the run."""
    os.environ[RUN] = json.dumps(asdict(told))
    path = os.environ.get("PYTHONPATH")
    if path is None or AT_START not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([AT_START, *([path] if path else [])])


def told() -> Told:
    """What this process was told by who has started it."""
    return Told(**json.loads(os.environ[RUN]))


def note_start(now_s: float) -> None:
    """Let the process that this one is about to start begin at that time."""
    os.environ[STARTED] = repr(now_s)


def start_s() -> float:
    """When this process began."""
    return float(os.environ.get(STARTED, "0"))


def install(patches: Patches) -> None:
    """Let times go on from process to process."""
    process = multiprocessing.process.BaseProcess
    connection = multiprocessing.connection.Connection
    for owner, name, around in (
        (process, "start", _starting),
        (subprocess.Popen, "__init__", _starting_program),
        (process, "join", partial(_resting, for_children=True)),
        (subprocess.Popen, "wait", partial(_resting, for_children=True)),
        (multiprocessing.connection, "wait", partial(_resting, for_children=True)),
        (connection, "recv", partial(_resting, for_children=False)),
        (connection, "recv_bytes", partial(_resting, for_children=False)),
    ):
        patches.set(owner, name, around(getattr(owner, name)))


def _starting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def start(*args: Any) -> Any:
        parent = current()
        if parent is not None and not _getframe(1).f_globals["__name__"].startswith(LOADERS):
            _check_can_be_imported(args[0])
            parent.starts()
        return theirs(*args)

    return start


def _check_can_be_imported(process: Any) -> None:
    """RuntimeError for a process that would have to import a function of a notebook's cell."""
    how = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    if how == "fork" or hasattr(sys.modules["__main__"], "__file__"):
        return
    for given in (getattr(process, "_target", None), *getattr(process, "_args", ())):
        if callable(given) and getattr(given, "__module__", "") == "__main__":
            name = getattr(given, "__qualname__", given)
            raise RuntimeError(
                f"{name} is defined in a cell, and a process that is started by {how!r} imports "
                "what it runs, which it cannot from there: start it by 'fork', before CUDA is used "
                "(torch.multiprocessing.start_processes(…, start_method='fork')); or write it to a "
                "file (%%writefile train.py), and run that: !d2lpar run train.py; or call it on "
                "ranks that are threads: d2lpar.run_ranks"
            )


def _starting_program(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A program finds the run, even in an environment that was made for it."""

    @wraps(theirs)
    def start(*args: Any, env: dict[str, str] | None = None, **kwargs: Any) -> Any:
        if (parent := current()) is not None:
            parent.starts()
            if env is not None:
                env = {**{name: os.environ[name] for name in FOUND_BY}, **env}
        return theirs(*args, env=env, **kwargs)

    return start


def _resting(theirs: Callable[..., Any], *, for_children: bool) -> Callable[..., Any]:
    @wraps(theirs)
    def wait(*args: Any, **kwargs: Any) -> Any:
        parent = current()
        if parent is None or threading.current_thread() is not threading.main_thread():
            return theirs(*args, **kwargs)
        parent.rests()
        result = theirs(*args, **kwargs)
        if for_children:
            parent.has_waited()
        return result

    return wait


def _before_fork() -> None:
    if (parent := current()) is not None:
        parent.forks()


def _after_fork() -> None:
    if (parent := current()) is not None:
        parent.has_forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
