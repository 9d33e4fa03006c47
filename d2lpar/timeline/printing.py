"""Printing where the encoding lacks characters of ours, as that of the locale C does."""

from __future__ import annotations

import sys
from typing import TextIO

PLAIN = str.maketrans(
    {"µ": "u", "×": "x", "·": "-", "±": "+-", "…": "...", "✓": "+", "✗": "x", "█": "#"}
)

lost: list[OSError] = []  # why something could not be printed, the last time
_print = print  # programs replace it, so that only the first of their ranks is heard


def say(text: object, *, flush: bool = False, stream: TextIO | None = None) -> None:
    """Print on a stream (None: stdout), whatever characters the text has.

    Where nobody reads it, or the disk is full, the work that it tells of goes on: `lost` is why.
    """
    stream = stream or sys.stdout
    try:
        _print(printable(str(text), stream), file=stream, flush=flush)
    except OSError as error:
        lost[:] = [error]


def printable(text: str, stream: TextIO | None) -> str:
    """The text as it is, or in characters that the stream can encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding, getattr(stream, "errors", None) or "strict")
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text
