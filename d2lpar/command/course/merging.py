"""A student's copy of a notebook and a new version of the course's, cell by cell.

Three are compared: the student's, the course's new one, and the course's that the copy was made
from. What only one side has changed is taken from it. Where both have, both cells are kept.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from nbformat import NotebookNode

from .notebook_file import UNNAMED, code_cells

NEW_VERSION = "new-version"  # the tag of a cell that stands under the student's own
SUFFIX = "-new"


@dataclass
class Merged:
    """The merged notebook, and what happened: cells that came new, and that both had changed."""

    notebook: NotebookNode
    taken: int = 0
    both: list[str] = field(default_factory=list)  # where: the first lines of those cells


def merge(own: NotebookNode, base: NotebookNode, new: NotebookNode) -> Merged:
    """The student's notebook with all that is new; no cell that the student wrote is lost."""
    merged = Merged(deepcopy(new))
    own = _identified(own, base)
    mine, before = _by_id(own), _by_id(base)
    cells: list[NotebookNode] = []
    for cell in new.cells:
        cells += _kept(mine.get(cell.id), before.get(cell.id), cell, merged)
    known = {cell.id for cell in new.cells}
    merged.notebook.cells = _with_own(cells, own, before, known)
    _number(merged.notebook)
    return merged


def _by_id(notebook: NotebookNode) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in notebook.cells}


def _identified(own: NotebookNode, base: NotebookNode) -> NotebookNode:
    """The student's notebook, its cells named as the course's: some programs drop the names."""
    own = deepcopy(own)
    named = {cell.id for cell in own.cells}
    lost = {cell.source: cell.id for cell in base.cells if cell.id not in named}
    known = {cell.id for cell in base.cells}
    for cell in own.cells:
        if UNNAMED.fullmatch(cell.id) and cell.id not in known and cell.source in lost:
            cell.id = lost.pop(cell.source)
    return own


def _kept(
    mine: NotebookNode | None, before: NotebookNode | None, new: NotebookNode, merged: Merged
) -> list[NotebookNode]:
    """What stands in the place of one cell of the new version."""
    changed = before is None or before.source != new.source
    if mine is None:
        removed = before is not None and not changed  # by the student, and it is as it was
        merged.taken += not removed
        return [] if removed else [deepcopy(new)]
    if mine.source == new.source:
        return [_with_metadata(mine, new)]
    if not changed:
        return [_with_metadata(mine, new)]
    if before is not None and mine.source == before.source:
        merged.taken += 1
        return [deepcopy(new)]
    merged.both.append(_first_line(mine))
    return [deepcopy(mine), _beside(new)]


def _with_metadata(mine: NotebookNode, new: NotebookNode) -> NotebookNode:
    """The student's cell with its outputs, tagged and laid out as in the new version."""
    cell = deepcopy(mine)
    cell.metadata = deepcopy(new.metadata)
    return cell


def _beside(new: NotebookNode) -> NotebookNode:
    """The new version of a cell that the student has changed, to stand under it."""
    cell = deepcopy(new)
    cell.id = new.id + SUFFIX
    cell.metadata["tags"] = [*cell.metadata.get("tags", []), NEW_VERSION]
    return cell


def _with_own(
    cells: list[NotebookNode], own: NotebookNode, before: dict[str, NotebookNode], known: set[str]
) -> list[NotebookNode]:
    """The cells with those that only the student's copy has, each after the cell it followed.

    Cells that the course has removed go, unless the student has changed them.
    """
    result, last = list(cells), None
    for cell in own.cells:
        if cell.id in known:
            last = cell.id
            continue
        there = [each.id for each in result]
        dropped = cell.id in before and cell.source == before[cell.id].source
        if not dropped and cell.id not in there:
            place = max((i for i, each in enumerate(there) if each in _names(last)), default=-1)
            result.insert(place + 1, deepcopy(cell))
            last = cell.id
    return result


def _names(last: str | None) -> tuple[str, ...]:
    return () if last is None else (last, last + SUFFIX)


def _first_line(cell: NotebookNode) -> str:
    return (cell.source.strip().splitlines() or [""])[0]


def _number(notebook: NotebookNode) -> None:
    """Number the cells that have run from the top down, as one run would."""
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.execution_count is not None:
            cell.execution_count = number
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = number
