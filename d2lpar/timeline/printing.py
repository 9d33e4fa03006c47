"""Printing where the encoding lacks characters of ours, as that of the locale C does, and in
colours where a terminal has them."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

PLAIN = str.maketrans(
    {"µ": "u", "×": "x", "·": "-", "±": "+-", "…": "...", "✓": "+", "✗": "x", "█": "#"}
)

COLORS = {"✓": "32", "✗": "31", "○": "33", "d2lpar:": "31"}  # green, red, yellow: ECMA-48
_COLORED = re.compile(r"^( *(?:\d+ )?)(✓|✗|○|d2lpar:)", re.MULTILINE)

lost: list[OSError] = []  # why something could not be printed, the last time
_print = print  # programs replace it, so that only the first of their ranks is heard


def say(text: object, *, flush: bool = False, stream: TextIO | None = None) -> None:
    """Print on a stream (None: stdout), whatever characters the text has.

    Where nobody reads it, or the disk is full, the work that it tells of goes on: `lost` is why.
    """
    stream = stream or sys.stdout
    try:
        shown = colored(str(text)) if has_colors(stream) else str(text)
        _print(printable(shown, stream), file=stream, flush=flush)
    except OSError as error:
        lost[:] = [error]


def has_colors(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal with colours, whose user has not asked for none (NO_COLOR)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and os.name != "nt" and stream is not None and stream.isatty()


def colored(text: str) -> str:
    """The text with its marks, and what errors begin with, in their colours."""
    return _COLORED.sub(lambda found: f"{found[1]}\x1b[{COLORS[found[2]]}m{found[2]}\x1b[0m", text)


def printable(text: str, stream: TextIO | None) -> str:
    """The text as it is, or in characters that the stream can encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding, getattr(stream, "errors", None) or "strict")
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text
