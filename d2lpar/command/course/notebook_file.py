"""Notebook files: read, written at once, and compared."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.reader import NotJSONError

SHOWN_CHARACTERS = 70
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
UNCOMPARED_KINDS = ("image/", WIDGET_VIEW)
UNCOMPARED_TAG = "nbval-ignore-output"
NOTHING = "(nothing)"
UNNAMED = re.compile(r"(cell-\d+)?")  # what a cell is called that has no name in the file


class UnreadableError(NotJSONError):
    """A file that is no notebook, with the reason."""


def read(path: Path) -> NotebookNode:
    """The notebook in a file, as nbformat 4, every cell with a text and an id of its own.

    Raises UnreadableError for what is none, whatever the file holds.
    """
    try:
        return _regular(nbformat.reads(_text(path.read_bytes()), as_version=4))
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
    except Exception as error:  # a file may hold anything, and others come after it
        told = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise UnreadableError(told) from None


def _text(content: bytes) -> str:
    """UTF-8, or UTF-16 or 32, as Windows writes some files."""
    try:
        return content.decode(json.detect_encoding(content))
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is no text in {error.encoding}: save it as UTF-8") from None


def _regular(notebook: NotebookNode) -> NotebookNode:
    """The same with all that is read of its cells; what a cell lacks, programs left out."""
    used: set[str] = set()
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.get("source") is None:
            cell["source"] = ""
        if not isinstance(cell.source, str):
            raise UnreadableError(f"the source of cell {number} is no text")
        cell.setdefault("metadata", NotebookNode())
        if cell.cell_type == "code":
            cell.setdefault("outputs", [])
            cell.setdefault("execution_count", None)
        name = str(cell.get("id") or f"cell-{number}")
        cell["id"] = name if name not in used else f"{name}-{number}"
        used.add(cell.id)
    notebook["nbformat_minor"] = max(5, notebook.get("nbformat_minor", 5))  # the first with ids
    return notebook


def code_by_number(notebook: NotebookNode) -> dict[int, str]:
    """The texts of code cells by their numbers, from 1, as the file shows them."""
    cells = enumerate(notebook.cells, start=1)
    return {number: cell.source for number, cell in cells if cell.cell_type == "code"}


def serialised(notebook: NotebookNode) -> str:
    """The text of a notebook's file."""
    return nbformat.writes(notebook) + "\n"


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that a run numbers: code, and not empty."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def without_widget_views(notebook: NotebookNode) -> NotebookNode:
    """Drop, in place, views of widgets that the kernel's end takes away; their text stays."""
    notebook.metadata.pop("widgets", None)
    for cell in code_cells(notebook):
        for output in cell.get("outputs", ()):
            if "data" in output:
                output["data"].pop(WIDGET_VIEW, None)
    return notebook


def text_of(cell: NotebookNode) -> str:
    """All that a cell printed or returned as text; what nbval compares."""
    parts = []
    for output in cell.outputs:
        data: dict[str, Any] = output.get("data", {})
        parts += [output.get("text", ""), output.get("evalue", "")]
        parts += [str(data[kind]) for kind in sorted(data) if not kind.startswith(UNCOMPARED_KINDS)]
    return "\n".join(part.rstrip("\n") for part in parts if part)


def changes(old: NotebookNode, new: NotebookNode) -> list[tuple[int, list[str]]]:
    """`(number, lines)` for every code cell whose compared text differs; `lines` say old -> new."""
    before = {cell.get("id", number): cell for number, cell in enumerate(code_cells(old))}
    found = []
    for number, cell in enumerate(code_cells(new)):
        if UNCOMPARED_TAG in tags(cell):
            continue
        earlier = before.get(cell.get("id", number))
        was, now = text_of(earlier) if earlier else "", text_of(cell)
        if was != now:
            found.append((number + 1, difference(was, now)))
    return found


def difference(was: str, now: str) -> list[str]:
    """The lines that differ, as 'old -> new', each cut to a readable length."""
    before, after = was.splitlines(), now.splitlines()
    lines = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        for index in range(max(b - a, d - c)):
            old = before[a + index] if a + index < b else NOTHING
            new = after[c + index] if c + index < d else NOTHING
            lines.append(f"{shortened(old)} -> {shortened(new)}")
    return lines


def shortened(line: str) -> str:
    """A line cut to a readable length."""
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"
