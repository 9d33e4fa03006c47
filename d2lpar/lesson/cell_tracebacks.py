"""An error in a cell is shown as on CUDA: the lines of the learner, and not those of the engine.

CUDA's own code is compiled and does not appear in a traceback. That of virtual GPUs is Python:
forty lines of it would stand below the one that matters. `%xmode Verbose` shows them. An error that
is a mistake of the engine is shown whole.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from itertools import zip_longest
from types import TracebackType
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ..locale import translated
from . import run_above

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
_WAYS_IN = (f"{os.sep}contextlib.py", os.path.join(os.sep, "torch", "overrides.py"))
_ABOVE = "If a cell above makes it, run those first: Run > Run All Above Selected Cell."
_MISTAKES = (AssertionError, AttributeError, KeyError, NameError)  # the engine means none of them


def shorten(shell: InteractiveShell) -> None:
    """From now on this shell shows short tracebacks, unless it has a handler of its own."""
    if not shell.custom_exceptions:
        shell.set_custom_exc((Exception, KeyboardInterrupt), _show)


def _show(
    shell: InteractiveShell,
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType,
    tb_offset: int | None = None,
) -> None:
    lacks = _lacks_a_cell_above(error, traceback)
    if lacks:
        error.add_note(translated(_ABOVE))
    if shell.InteractiveTB.mode != "Verbose":
        for each in _chain(error):
            cut(each)
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset, running_compiled_code=True)
    if lacks:
        run_above.offer()


def _lacks_a_cell_above(error: BaseException, traceback: TracebackType) -> bool:
    """Whether a name of the learner's, or a magic, is not there: some cell may make it."""
    if isinstance(error, UsageError):
        return str(error).endswith("not found.")
    return type(error) is NameError and not _is_in(list(_frames(traceback))[-1], _PACKAGE)


def cut(error: BaseException) -> None:
    """Take the frames of d2lpar, and what stands for compiled code, out of a traceback.

    What calls d2lpar stays, and so does what it calls on the learner's behalf.
    """
    frames = list(_frames(error.__traceback__))
    if not frames or _is_mistake(error, frames[-1]):
        return
    kept, compiled = frames[:1], False
    for frame, called in zip_longest(frames[1:], frames[2:]):
        own = _is_in(frame, _PACKAGE)
        compiled = (compiled or _is_dispatch(frame)) and (own or _is_in(frame, *_LIBRARIES))
        enters = called and _file(frame).endswith(_WAYS_IN) and _is_in(called, _PACKAGE)
        if not (own or compiled or enters):
            kept[-1].tb_next = frame
            kept.append(frame)
    kept[-1].tb_next = None


def _is_dispatch(frame: TracebackType) -> bool:
    """Whether torch's dispatcher enters the engine: from here on CUDA is compiled."""
    return frame.tb_frame.f_code.co_name == "__torch_dispatch__" and _is_in(frame, _PACKAGE)


def _is_mistake(error: BaseException, innermost: TracebackType) -> bool:
    on_purpose = innermost.tb_frame.f_code.co_name == "__getattr__"
    return isinstance(error, _MISTAKES) and _is_in(innermost, _PACKAGE) and not on_purpose


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_in(frame: TracebackType, *folders: str) -> bool:
    return _file(frame).startswith(folders)


def _file(frame: TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
