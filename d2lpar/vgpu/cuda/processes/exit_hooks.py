"""Functions that a process calls when it ends: those that it has registered by `atexit`.

Virtual processes end before Python does, and each calls its own, with its groups, loggers and
devices. What a library registers that all share is called when Python ends, as ever.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from typing import Any

from ...patching import Patches
from ...ranks.launcher import current_process
from ...ranks.state.own_modules import is_shared
from .child_tracebacks import text_of


def install(patches: Patches) -> None:
    """Let virtual processes register their own in the block."""
    theirs = atexit.register, atexit.unregister

    def register(function: Callable, /, *args: Any, **kwargs: Any) -> Callable:
        process = current_process()
        if process is None or is_shared(_getframe(2)):  # its caller; the stand-in is between
            return theirs[0](function, *args, **kwargs)
        process.exit_hooks.append(partial(function, *args, **kwargs))
        return function

    def unregister(function: Callable) -> None:
        theirs[1](function)
        process = current_process()
        if process is not None:
            process.exit_hooks[:] = [h for h in process.exit_hooks if h.func != function]

    patches.replace(atexit, "register", register)
    patches.replace(atexit, "unregister", unregister)


@contextmanager
def called_at_the_end() -> Iterator[None]:
    """Call what the process has registered in the block, last first: after an error, too, but not
    where another process has ended this one."""
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt):
        _call()
        raise
    _call()


def _call() -> None:
    process = current_process()
    while process is not None and process.exit_hooks:
        hook = process.exit_hooks.pop()
        try:
            hook()
        except Exception as error:  # Python says so, and goes on
            told = f"Exception ignored in atexit callback: {hook.func!r}\n{text_of(error)}"
            print(told, end="", file=sys.stderr)
