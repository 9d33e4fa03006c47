"""Where in the user's code something happened: the innermost line outside torch and libraries."""

from __future__ import annotations

import linecache
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import CodeType, FrameType

from .user_code import belongs_to_user

SHOWN = 28  # characters of a cell's first line

# What is kept of a place while the program runs: a code object and an instruction in it.
Mark = tuple[CodeType, int]

_is_users: dict[str, bool] = {}  # by file


@dataclass(frozen=True, order=True)
class CallSite:
    """A line of the user's code; prints as "train.py:12", in a notebook as 'cell "x = …", line 2'.

    A cell is told by its first line: its number changes from run to run.
    """

    file: str
    line: int

    def __str__(self) -> str:
        cell = _cell(self.file)
        return f"{cell}, line {self.line}" if cell else f"{Path(self.file).name}:{self.line}"

    @property
    def source(self) -> str:
        """The line itself; empty if it cannot be found."""
        return linecache.getline(self.file, self.line).strip()


UNKNOWN = CallSite("unknown place", 0)


def mark(inner: int = 1) -> Mark | None:
    """The line of the user that is running; None if this thread runs none.

    So many `inner` calls are d2lpar's for sure: Python makes an object of each that is looked at.
    """
    return mark_in(_getframe(inner))


def mark_in(frame: FrameType | None) -> Mark | None:
    """The line of the user in which a frame is, or the nearest that has called it; else None."""
    known = _is_users
    while frame is not None:
        code = frame.f_code
        users = known.get(code.co_filename)
        if users is None:
            users = known[code.co_filename] = belongs_to_user(code.co_filename)
        if users:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def call_site_of(marked: Mark | CallSite | None) -> CallSite:
    """The file and line of a mark, if it is not known by these already."""
    if marked is None:
        return UNKNOWN
    if isinstance(marked, CallSite):
        return marked
    code, instruction = marked
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return CallSite(code.co_filename, line)


def line_here() -> str:
    """The line of the user that is running, as a text; "" if this thread runs none."""
    marked = mark(2)
    return "" if marked is None else _text_of(marked)


@lru_cache(4096)
def _text_of(marked: Mark) -> str:
    return str(call_site_of(marked))


_OLD_CELL = re.compile(r"ipykernel_\d+|<ipython-input")


def _cell(file: str) -> str | None:
    """The notebook cell that IPython runs under this file name, by its first line."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return None
    named = getattr(shell.compile, "format_code_name", _OLD_CELL.search)  # IPython 7 has none
    if not named(file):
        return None
    first = next((line.strip() for line in linecache.getlines(file) if line.strip()), "")
    return f'cell "{first if len(first) <= SHOWN else first[: SHOWN - 1] + "…"}"'
