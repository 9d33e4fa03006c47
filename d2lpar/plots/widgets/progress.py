"""How far a reader is in a lesson: what its notebook asks for, and what of that is done.

A notebook itself says what it asks for: functions that its cells give to `par.check` or
`par.challenge`, and questions that they give to `par.predict`. No other list of them is kept.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...timeline import kept

EXERCISES, PREDICTIONS = "exercises", "predictions"  # under which what is done is kept
EXAMPLE = "example"  # tags a cell that shows a check, and asks for nothing
CHECKED = re.compile(r"^par\.(?:check|challenge)\((\w+)\)\s*\Z", re.MULTILINE)
NUMBER = re.compile(r"(\d\d)_")
LESSON, DEEPER = "lesson {number}", "lesson {number}, deeper half"


@dataclass(frozen=True)
class Asked:
    """The names of functions and the questions that a lesson asks for, or all rooms together."""

    label: str
    exercises: frozenset[str]
    predictions: frozenset[str]

    def __or__(self, other: Asked) -> Asked:
        exercises, predictions = other.exercises, other.predictions
        return Asked(self.label, self.exercises | exercises, self.predictions | predictions)

    def progress(self, done: Collection[str]) -> str:
        """Such as "lesson 02: 1 of 2 exercises, 2 of 2 predictions"."""
        counts = {"exercise": self.exercises, "prediction": self.predictions}
        parts = [_part(what, names, done) for what, names in counts.items() if names]
        return f"{self.label}: {', '.join(parts)}"


def _part(what: str, names: frozenset[str], done: Collection[str]) -> str:
    plural = "" if len(names) == 1 else "s"
    return f"{len(names.intersection(done))} of {len(names)} {what}{plural}"


def line_with(what: str) -> str:
    """The progress of the lesson in the current folder that asks for this function, or asks this
    question; empty where there is none, or nothing is kept."""
    if kept.folder() is None:
        return ""
    here = Path.cwd()
    found = [each for each in asked_in(here) if what in each.exercises | each.predictions]
    return found[0].progress(done(here)) if found else ""


def asked_in(folder: Path) -> list[Asked]:
    """What the notebooks in a folder ask for, in the order of their names."""
    found: dict[str, Asked] = {}
    for path in sorted(folder.glob("*.ipynb")):
        asked = _asked(path)
        if asked.exercises or asked.predictions:
            found[asked.label] = found[asked.label] | asked if asked.label in found else asked
    return [*found.values()]


def done(folder: Path) -> set[str]:
    """The functions that were right, and the questions that were answered, in a folder."""
    answered = kept.read(PREDICTIONS, folder)
    return {
        *kept.read(EXERCISES, folder),
        *(q for q, value in answered.items() if value is not None),
    }


def _asked(path: Path) -> Asked:
    cells = [*_code(path)]
    checked = [found[1] for cell in cells if (found := CHECKED.search(cell))]
    questions = [question for cell in cells for question in questions_in(cell)]
    return Asked(_label(path), frozenset(checked), frozenset(questions))


def _label(path: Path) -> str:
    """What a page is called; the rooms of the museum are one."""
    folder, number = path.absolute().parent.name, NUMBER.match(path.name)
    if folder == "museum":
        return folder
    if number is None:
        return path.stem
    return (DEEPER if folder == "deeper" else LESSON).format(number=number[1])


def _code(path: Path) -> Iterator[str]:
    """The code cells of a notebook; none of what is no notebook, which others must open."""
    try:
        for cell in json.loads(path.read_bytes())["cells"]:
            if cell["cell_type"] == "code" and EXAMPLE not in cell["metadata"].get("tags", ()):
                yield "".join(cell["source"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return


def questions_in(cell: str) -> Iterator[str]:
    """What a cell gives to `par.predict`, in words or by a name that it gives to words."""
    if "par.predict(" not in cell:
        return
    try:
        nodes = [*ast.walk(ast.parse(cell))]
    except (SyntaxError, ValueError, RecursionError):
        return
    named = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                named[name] = text
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="predict"), args=[ast.Constant(str(text)), *_]):
                yield text
            case ast.Call(func=ast.Attribute(attr="predict"), args=[ast.Name(id=name), *_]):
                yield named.get(name, name)
