"""What a lesson's notes tell its speaker: what to ask the class, and how long that takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

HEADING = re.compile(r"^#{1,3} (.+)", re.MULTILINE)
MINUTES = re.compile(r"\((\d+) min\)")


@dataclass(frozen=True)
class Note:
    """A note, the heading that it stands under, and the minutes that it names."""

    heading: str
    text: str

    @property
    def minutes(self) -> int:
        """The minutes that all its parts take together; 0 where it names none."""
        return sum(int(minutes) for minutes in MINUTES.findall(self.text))

    def __str__(self) -> str:
        return f"  {self.heading}: {' '.join(self.text.split())}"


def notes_in(notebook: NotebookNode) -> Iterator[Note]:
    """The notes of a lesson, in order."""
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        if cell.metadata.get("slideshow", {}).get("slide_type") == "notes":
            yield Note(heading, cell.source.strip())
        else:
            heading = (HEADING.findall(cell.source) or [heading])[-1]


def described(lesson: str, notes: list[Note]) -> str:
    """The notes as lines, under one that says how many minutes they take."""
    if not notes:
        return f"{lesson}: no notes for the speaker"
    minutes = sum(note.minutes for note in notes)
    return "\n".join([f"{lesson}: {minutes} minutes of questions to the class", *map(str, notes)])
