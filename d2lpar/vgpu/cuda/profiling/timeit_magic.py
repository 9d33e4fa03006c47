"""IPython's `%timeit` inside the block."""

from __future__ import annotations

import functools
from collections.abc import Callable

from IPython.core.interactiveshell import InteractiveShell

from ...patching import Patches
from . import user_clock


def install(patches: Patches) -> None:
    """Let `%timeit` repeat a statement as often as the simulated clock, which is exact, needs."""
    if InteractiveShell.initialized():
        shell = InteractiveShell.instance()
        found = {"line": shell.find_line_magic("timeit"), "cell": shell.find_cell_magic("timeit")}
        for kind, theirs in found.items():  # found, as IPython may not have loaded them yet
            patches.set_item(shell.magics_manager.magics[kind], "timeit", _few_loops(theirs))


def _few_loops(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def timeit(line: str = "", *args: object, **kwargs: object) -> object:
        counted = any(word.startswith("-n") for word in _options(line))
        return theirs(line if counted else f"-n {user_clock.LOOPS} {line}", *args, **kwargs)

    return timeit


def _options(line: str) -> list[str]:
    """The words before the statement, such as "-n", "10" and "-r3"."""
    words = line.split()
    for i, word in enumerate(words):
        if not (word.startswith("-") or word.isdigit()):
            return words[:i]
    return words
