"""Warnings of torch's C++ name the line that has called torch, as they do without a function mode.

They name the innermost line of Python, which under emulation is one of this package.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FrameType

from ...patching import Patches

_ENGINE = str(Path(__file__).parents[2]) + os.sep
_MODES = ("__torch_function__", "__torch_dispatch__")  # called by torch, not by who calls torch


def install(patches: Patches) -> None:
    """Replace `warnings.showwarning`, which is there to be replaced."""
    patches.replace(warnings, "showwarning", _blaming_callers(warnings.showwarning))


def _blaming_callers(theirs: Callable[..., None]) -> Callable[..., None]:
    def showwarning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        if filename.startswith(_ENGINE):
            filename, lineno = _caller(filename, lineno)
        theirs(message, category, filename, lineno, file, line)

    return showwarning


def _caller(filename: str, lineno: int) -> tuple[str, int]:
    """File and line of who has called torch, from the line of this package that is named; that
    line where nobody else's is on the stack, as in a thread of the engine."""
    frame: FrameType | None = _getframe(2)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (filename, lineno):
        frame = frame.f_back
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    return (filename, lineno) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _is_between(frame: FrameType) -> bool:
    """Whether it is called by torch while that carries out a call: this package, or a mode."""
    return frame.f_code.co_filename.startswith(_ENGINE) or frame.f_code.co_name in _MODES
