"""A student's copy of a notebook and a new version of the course's, cell by cell.

Three are compared: the student's, the course's new one, and the course's that the copy was made
from. What only one side has changed is taken from it. Where both have, both cells are kept.
"""

from __future__ import annotations

from collections.abc import Container
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

from nbformat import NotebookNode

from .notebook_file import UNNAMED, code_cells

NEW_VERSION = "new-version"  # the tag of a cell that stands under the student's own
SUFFIX = "-new"
LANGUAGE = "language"  # of a notebook that is not English, in its metadata


@dataclass
class Merged:
    """The merged notebook, and what happened: cells that came new, and that both had changed."""

    notebook: NotebookNode
    taken: int = 0
    both: list[str] = field(default_factory=list)  # where: the first lines of those cells
    is_other: bool = True  # than the student's own
    translates: bool = False  # the new version is in another language


def merge(own: NotebookNode, base: NotebookNode, new: NotebookNode) -> Merged:
    """The student's notebook with all that is new; no cell that the student wrote is lost.

    From one language to another a cell of code that the student has changed stays as it is: only
    the words in it are others. The order of cells, and what notebook and cells say of themselves
    (kernel, tags, …), are the student's where the student has changed them.
    """
    merged = Merged(deepcopy(new), translates=_language(base) != _language(new))
    own = _identified(own, base)
    mine, before = _by_id(own), _by_id(base)
    kept = {
        cell.id: _kept(mine.get(cell.id), before.get(cell.id), cell, merged) for cell in new.cells
    }
    cells = [cell for name in _order(own, base, new) for cell in kept[name]]
    merged.notebook.metadata = _metadata(own.metadata, base.metadata, new.metadata)
    merged.notebook.cells = _with_own(cells, own, before, set(kept))
    merged.is_other = (merged.notebook.cells, merged.notebook.metadata) != (own.cells, own.metadata)
    if merged.is_other:
        _number(merged.notebook)
    return merged


def distance(own: NotebookNode, version: NotebookNode) -> int:
    """In how many cells the two differ."""
    mine, theirs = ({(cell.get("id"), *_content(cell)) for cell in n.cells} for n in (own, version))
    return len(mine ^ theirs)


def _identified(own: NotebookNode, base: NotebookNode) -> NotebookNode:
    """The student's notebook, each cell with a name of its own: not every program gives them any.

    A cell without one is the course's of the same content, if there is one.
    """
    own, names = deepcopy(own), set[str]()
    unnamed, known = [], {cell.id for cell in base.cells}
    for cell in own.cells:
        name = cell.get("id", "")
        if name in known - names or not (name in names or UNNAMED.fullmatch(name)):
            names.add(name)
        else:
            unnamed.append(cell)
    for cell in unnamed:
        same = (c.id for c in base.cells if c.id not in names and _content(c) == _content(cell))
        cell.id = next(same, None) or _unused("own", names)
        names.add(cell.id)
    return own


def _unused(stem: str, names: Container[str]) -> str:
    return next(name for i in count(2) if (name := f"{stem}-{i}") not in names)


def _by_id(notebook: NotebookNode) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in notebook.cells}


def _language(notebook: NotebookNode) -> str:
    return notebook.metadata.get(LANGUAGE, "")


def _content(cell: NotebookNode) -> tuple[str, str, str]:
    """What a person has written: cells are the same that have the same of it."""
    return cell.cell_type, cell.source, str(cell.get("attachments") or "")


def _kept(
    mine: NotebookNode | None, before: NotebookNode | None, new: NotebookNode, merged: Merged
) -> list[NotebookNode]:
    """What stands in the place of one cell of the new version."""
    changed = before is None or _content(before) != _content(new)
    if mine is None:
        removed = before is not None and not changed  # by the student, and it is as it was
        merged.taken += not removed
        return [] if removed else [deepcopy(new)]
    if not changed or _content(mine) == _content(new):
        return [_with_metadata(mine, mine, before, new)]
    if before is not None and _content(mine) == _content(before):
        merged.taken += 1
        return [_with_metadata(new, mine, before, new)]
    if merged.translates and mine.cell_type == "code":
        return [deepcopy(mine)]
    merged.both.append(_first_line(mine))
    return [deepcopy(mine), _beside(new)]


def _with_metadata(
    cell: NotebookNode, mine: NotebookNode, before: NotebookNode | None, new: NotebookNode
) -> NotebookNode:
    """A copy of the cell, tagged and laid out as both want it."""
    cell = deepcopy(cell)
    was = NotebookNode() if before is None else before.metadata
    cell.metadata = _metadata(mine.metadata, was, new.metadata)
    return cell


def _metadata(mine: NotebookNode, before: NotebookNode, new: NotebookNode) -> NotebookNode:
    """The new version's, but for what the student has changed; tags of both."""
    merged = deepcopy(new)
    for key in {**mine, **before}:
        if mine.get(key) == before.get(key):
            continue
        if key == "tags":
            merged.tags = _tags(*(each.get("tags", []) for each in (mine, before, new)))
        elif key in mine:
            merged[key] = deepcopy(mine[key])
        else:
            merged.pop(key, None)
    return merged


def _tags(mine: list[str], before: list[str], new: list[str]) -> list[str]:
    kept = [tag for tag in mine if tag in new or tag not in before]
    return kept + [tag for tag in new if tag not in before and tag not in kept]


def _beside(new: NotebookNode) -> NotebookNode:
    """The new version of a cell that the student has changed, to stand under it."""
    cell = deepcopy(new)
    cell.id = new.id + SUFFIX
    cell.metadata["tags"] = [*cell.metadata.get("tags", []), NEW_VERSION]
    return cell


def _order(own: NotebookNode, base: NotebookNode, new: NotebookNode) -> list[str]:
    """The cells of the new version in its order, or in the student's, who has moved some."""
    theirs = [cell.id for cell in new.cells]
    mine = [cell.id for cell in own.cells if cell.id in theirs]
    before = [cell.id for cell in base.cells if cell.id in mine]
    if [name for name in mine if name in before] == before:
        return theirs
    for last, name in zip([None, *theirs], theirs, strict=False):
        if name not in mine:
            mine.insert(0 if last is None else mine.index(last) + 1, name)
    return mine


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
        there = {each.id: each for each in result}
        if _is_ours(cell, before, there):
            continue
        place = max((i for i, name in enumerate(there) if name in _names(last)), default=-1)
        cell = deepcopy(cell)
        if cell.id in there:
            cell.id = _unused(cell.id, there)
        result.insert(place + 1, cell)
        last = cell.id
    return result


def _is_ours(
    cell: NotebookNode, before: dict[str, NotebookNode], there: dict[str, NotebookNode]
) -> bool:
    """Whether a cell is as the course had it, and need not be kept for the student's sake."""
    if cell.id in before:
        return _content(cell) == _content(before[cell.id])
    was = before.get(cell.id.removesuffix(SUFFIX))
    versions = [each for each in (was, there.get(cell.id)) if each is not None]
    return cell.id in there and _content(cell) in map(_content, versions)


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
