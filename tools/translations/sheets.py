"""Sheets for translators: the cells of a notebook as one text, each under its name.

A sheet has the English of what is to be translated, and comes back with the translation in its
place. Below an English that has changed stands the translation of the former one, as a start.
"""

from __future__ import annotations

import re
from pathlib import Path

from .catalogues import units

CELL = "<!-- cell {name} -->"
FORMER = "<!-- the translation of the former English:\n{text}\n-->"
_CELL = re.compile(r"^<!-- cell (\S+) -->\n", re.MULTILINE)
_FORMER = re.compile(r"<!-- the translation of the former English:\n.*?\n-->", re.DOTALL)


def sheet(language: str, notebook: Path, *, whole: bool = False) -> str:
    """What is to be translated of a notebook; with `whole`, all of it as it is translated now."""
    parts = []
    for unit in units(language, notebook):
        if whole or not unit.is_current:
            text = unit.translated if whole and unit.is_current else unit.english
            parts.append(f"{CELL.format(name=unit.cell)}\n{text}")
            if unit.translated and not unit.is_current:
                parts.append(FORMER.format(text=unit.translated))
    return "\n\n".join(parts) + "\n"


def read(text: str) -> dict[str, str]:
    """The translations of a sheet, by the names of cells. Raises ValueError if it has none."""
    _, *parts = _CELL.split(_FORMER.sub("", text))
    if not parts:
        raise ValueError(f"no cell: a sheet has lines such as {CELL.format(name='c001-03')}")
    return {name: each.strip("\n") for name, each in zip(parts[::2], parts[1::2], strict=True)}
