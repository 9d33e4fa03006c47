"""Numbers for people: bytes in decimal units, seconds in the unit that fits, tables of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..locale import columns, label

Column = Callable[[str, int], str]


def bytes_text(nbytes: float) -> str:
    """Such as "5.14 GB", "80.38 kB", "12 bytes"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"


def seconds_text(seconds: float) -> str:
    """Three digits and the unit that fits: "1.25 ms"."""
    for unit, per_s in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * per_s >= 1:
            return f"{seconds * per_s:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def binary_bytes_text(nbytes: int) -> str:
    """What caches hold, in whole binary units: "48 KiB", "3 MiB", "12 B"."""
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


def table(
    rows: Sequence[Sequence[str]], first: Column = str.ljust, others: Column = str.rjust
) -> list[str]:
    """Rows of equally many texts, in the reader's language, as lines of aligned columns."""
    said = [[label(text) for text in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*said, strict=True)]
    sides = [first, *[others] * (len(widths) - 1)]
    return ["  ".join(map(_cell, sides, row, widths)).rstrip() for row in said]


def _cell(side: Column, text: str, width: int) -> str:
    return side(text, width - columns(text) + len(text))
