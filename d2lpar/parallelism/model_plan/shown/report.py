"""The answer as lines of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from .answer import Bar, Part

WIDTH, BAR = 100, 40
FULL, ROOM = "█", "·"


def text(parts: Iterable[Part]) -> str:
    """All of it, with a blank line between two parts."""
    return "\n\n".join("\n".join(_lines(part)) for part in parts)


def _lines(part: Part) -> Iterator[str]:
    yield from _wrapped(f"{part.question} {part.short}".rstrip(), "")
    for line in part.above:
        yield from _wrapped(line)
    yield from _bars(part.bars)
    for line in part.below:
        yield from _wrapped(line)


def _wrapped(line: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        line, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def _bars(bars: Iterable[Bar]) -> Iterator[str]:
    bars = list(bars)
    name = max((len(bar.name) for bar in bars), default=0)
    amount = max((len(bar.amount) for bar in bars), default=0)
    for bar in bars:
        begin, end = (round(BAR * at) for at in (bar.begin, bar.begin + bar.size))
        drawn = " " * begin + (ROOM if bar.room else FULL) * (end - begin)
        yield f"  {bar.name:<{name}}  {bar.amount:>{amount}}  |{drawn:<{BAR}}|"
