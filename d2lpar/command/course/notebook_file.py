"""Notebook files: read, written at once, and compared."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

SHOWN_CHARACTERS = 70
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
UNCOMPARED_KINDS = ("image/", WIDGET_VIEW)
UNCOMPARED_TAG = "nbval-ignore-output"
NOTHING = "(nothing)"


def read(path: Path) -> NotebookNode:
    """The notebook in a file."""
    return nbformat.read(path, as_version=4)


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
