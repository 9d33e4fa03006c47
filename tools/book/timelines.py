"""The timelines that a notebook shows, kept for pages behind which no kernel runs.

While a notebook runs, each of its timelines is a widget; what the widget is given is all that the
page needs.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2lpar.plots.picture import WIDGET_VIEW
from d2lpar.plots.texts import GANTT

if TYPE_CHECKING:
    from nbformat import NotebookNode

FILE = "timelines.json"
STATE = "application/vnd.jupyter.widget-state+json"
IMAGE = '<img src="data:image/png;base64,{png}" alt="{alt}" width="{width}" height="{height}">'


def is_timeline(output: NotebookNode) -> bool:
    """Whether an output is the picture of a timeline."""
    data = output.get("data", {})
    return "image/png" in data and data.get("text/plain", "").startswith(GANTT.partition("{")[0])


def has_timelines(cell: NotebookNode) -> bool:
    """Whether a cell's stored outputs have one."""
    return cell.cell_type == "code" and any(map(is_timeline, cell.outputs))


def store(notebook: NotebookNode, cell: NotebookNode, folder: Path, key: str) -> None:
    """Keep those of a cell of a notebook that has run with its widgets, in the order of its
    pictures; None stands for one that was too long to be a widget."""
    models = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    found = []
    for output in filter(is_timeline, cell.outputs):
        view = output.data.get(WIDGET_VIEW, {})
        found.append(models.get(view.get("model_id"), {}).get("state", {}).get("packed"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps({"key": key, "packed": found}), encoding="utf-8")


def load(folder: Path, key: str) -> list[str | None]:
    """Those of a cell; none if they are of code that has changed since."""
    file = folder / FILE
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return known["packed"] if known.get("key") == key else []


def touchable(outputs: list[NotebookNode], packed: list[str | None]) -> Iterator[NotebookNode]:
    """The outputs of a cell, with views in the place of their pictures where they are known."""
    rest = list(packed)
    for output in outputs:
        known = rest.pop(0) if rest and is_timeline(output) else None
        yield output if known is None else _view(output, known)


def _view(output: NotebookNode, packed: str) -> NotebookNode:
    """HTML of a picture that timelines.js replaces by the view."""
    import nbformat

    shown = output.metadata.get("image/png", {})
    image = IMAGE.format(
        png="".join(output.data["image/png"].split()),
        alt=html.escape(shown.get("alt", "")),
        width=shown.get("width", ""),
        height=shown.get("height", ""),
    )
    text = f'<figure class="timeline-view" data-packed="{packed}">\n{image}\n</figure>'
    return nbformat.v4.new_output("display_data", {"text/html": text})
