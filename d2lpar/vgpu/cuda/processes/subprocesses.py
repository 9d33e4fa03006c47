"""Python programs that frameworks start as processes of their own: virtual processes, too.

So does `accelerate launch` with one process, by `subprocess.Popen`. What the program itself starts
so stays a real process, and what has its streams redirected.

Lightning starts the program itself once more for each further rank, and goes on as rank 0. These
are to exchange data, so whoever runs the program hears of it, and lets all begin anew as ranks.

`nvidia-smi` tells of the emulated GPUs.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FrameType
from typing import Any

from ...patching import Patches
from ...ranks.state.own_modules import is_of_one_process
from .. import lazy_init
from ..torch_cuda import nvidia_smi
from .elastic import run_python
from .processes import FRESH, SPAWN, Child, Children


class StartsItself(BaseException):
    """Ends a process that would go on as rank 0 of so many `ranks`."""

    def __init__(self, ranks: int) -> None:
        super().__init__(f"the program starts itself, as {ranks} ranks")
        self.ranks = ranks


class _Thread(threading.local):
    is_heard = False


_here = _Thread()


@contextmanager
def starts_of_itself_heard() -> Iterator[None]:
    """Within, a program of this thread that starts itself as ranks raises StartsItself."""
    _here.is_heard = True
    try:
        yield
    finally:
        _here.is_heard = False


class VirtualProgram(subprocess.Popen):
    """A Python program that is a virtual process; it runs when somebody waits for it."""

    def __init__(
        self, children: Children, words: Sequence[str], env: Mapping[str, str] | None
    ) -> None:
        process = multiprocessing.get_context(SPAWN).Process()  # type: ignore[attr-defined]
        target = partial(_live, list(words[1:]), dict(os.environ if env is None else env))
        self._child = Child(children, Path(words[-1]).name, target, FRESH, process)
        self.args, self.pid, self.returncode = words, self._child.pid, None
        self.stdin = self.stdout = self.stderr = None
        children.start(self._child)

    def poll(self) -> int | None:
        """Its exit status; it runs now if it has not."""
        self.returncode = self._child.poll()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Run it if it has not, and give its exit status."""
        return self.poll() or 0

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[None, None]:
        """Run it; its streams are those of who starts it."""
        self.wait()
        return None, None

    def send_signal(self, sig: int) -> None:
        """Nothing is left to tell: it runs to its end when somebody waits for it."""

    def __del__(self) -> None:
        """No process of the system is left behind."""


def _live(words: list[str], environment: Mapping[str, str]) -> None:
    """Its life, in an environment of its own."""
    os.environ.clear()
    os.environ.update(environment)
    run_python(words)


def install(children: Children, patches: Patches) -> None:
    """Let programs that frameworks start be virtual from now on."""
    theirs = subprocess.Popen.__init__
    patches.set(subprocess.Popen, "__init__", _starting(children, theirs))


def _starting(children: Children, theirs: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, args: Any, *others: Any, **options: Any) -> None:  # noqa: N807
        if lazy_init.emulated_count() and not others:
            told = nvidia_smi.stand_in(args, shell=bool(options.get("shell")))
            if told is not None:
                theirs(self, told, **{**options, "shell": False, "executable": None})
                return
        inherits = not others and options.keys() <= {"env", "cwd"} and options.get("cwd") is None
        if not (lazy_init.emulated_count() and inherits and _is_program(args)):
            theirs(self, args, *others, **options)
        elif not is_of_one_process(_caller(_getframe(1))):
            theirs(self, args, **options)
        else:
            ranks = _ranks_of_itself(args, options.get("env") or os.environ)
            if ranks and _here.is_heard:
                raise StartsItself(ranks)
            self.__class__ = VirtualProgram
            VirtualProgram.__init__(self, children, args, options.get("env"))

    return __init__


def _caller(frame: FrameType | None) -> str:
    """The package that starts a process, perhaps by `subprocess.run`, or as the main module."""
    while frame is not None and frame.f_globals.get("__name__") == subprocess.__name__:
        frame = frame.f_back
    names = {} if frame is None else frame.f_globals
    return names.get("__package__") or names.get("__name__") or ""


def _is_program(args: object) -> bool:
    """Whether these words start a script or a module by Python."""
    if not isinstance(args, (list, tuple)) or not Path(str(args[0])).name.startswith("python"):
        return False
    words = [str(word) for word in args[1:] if word != "-u"]
    return bool(words) and (words[0] == "-m" or not words[0].startswith("-"))


def _ranks_of_itself(args: Sequence[object], env: Mapping[str, str]) -> int:
    """How many ranks there shall be, if these words start this very program as one of them but the
    first; else 0."""
    words = [str(word) for word in args[1:] if word != "-u"]
    same = words == [os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    if not same and (words[0] != "-m" or words[2:] != sys.argv[1:]):
        return 0
    size = env.get("WORLD_SIZE", "")
    return int(size) if env.get("LOCAL_RANK", "0") != "0" and size.isdigit() else 0
