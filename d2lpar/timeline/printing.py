"""Printing where the encoding lacks characters of ours, as that of the locale C does, and in
colours where a terminal, or somebody's notebook, has them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TextIO

from ..locale import translated

PLAIN = str.maketrans(
    {"µ": "u", "×": "x", "·": "-", "±": "+-", "…": "...", "✓": "+", "✗": "x", "█": "#"}
)

# Of a terminal, in words of ECMA-48: green, red, yellow.
COLORS = {"✓": "32", "✗": "31", "○": "33", "d2lpar:": "31"}
# Of a notebook, bold: bluish green, vermilion, blue (Okabe and Ito), which the colour-blind tell
# apart too. On white and on the black of a dark page their contrast is above 3.
SHADES = {
    "✓": "1;38;2;0;158;115",
    "✗": "1;38;2;213;94;0",
    "○": "1;38;2;0;114;178",
    "d2lpar:": "1;38;2;213;94;0",
}
_COLORED = re.compile(r"^( *(?:\d+ )?)(✓|✗|○|d2lpar:)", re.MULTILINE)

lost: list[OSError] = []  # why something could not be printed, the last time
_print = print  # programs replace it, so that only the first of their ranks is heard


def say(text: object, *, flush: bool = False, stream: TextIO | None = None) -> None:
    """Print on a stream (None: stdout), in the reader's language, whatever characters the text has.

    Where nobody reads it, or the disk is full, the work that it tells of goes on: `lost` is why.
    """
    write(translated(str(text)), flush=flush, stream=stream)


def write(text: str, *, flush: bool = False, stream: TextIO | None = None) -> None:
    """The same for a program that reads it: word by word."""
    stream = stream or sys.stdout
    try:
        shown = colored(text, colors_of(stream))
        _print(printable(shown, stream), file=stream, flush=flush)
    except OSError as error:
        lost[:] = [error]


def colors_of(stream: TextIO | None) -> Mapping[str, str]:
    """The colours that a stream shows; none where its user has asked for none (NO_COLOR)."""
    if stream is None or os.environ.get("NO_COLOR"):
        return {}
    if type(stream).__module__ == "ipykernel.iostream":
        return SHADES if is_watched() else {}
    has_them = os.environ.get("TERM") != "dumb" and os.name != "nt" and stream.isatty()
    return COLORS if has_them else {}


def is_watched() -> bool:
    """Whether somebody looks on at the cell that runs: a front end names it, and programs that run
    notebooks, to store or to compare their outputs, do not."""
    return "cellId" in said_of_cell()


def said_of_cell() -> dict:
    """What a front end says of the cell that it has a kernel run; empty where there is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    request: dict = getattr(shell, "get_parent", dict)() or {}
    return request.get("metadata", {})


def colored(text: str, colors: Mapping[str, str]) -> str:
    """The text with its marks, and what errors begin with, in these colours."""
    if not colors:
        return text
    return _COLORED.sub(lambda found: f"{found[1]}\x1b[{colors[found[2]]}m{found[2]}\x1b[0m", text)


def printable(text: str, stream: TextIO | None) -> str:
    """The text as it is, or in characters that the stream can encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding, getattr(stream, "errors", None) or "strict")
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text
