"""What a lesson's notes tell its speaker: what to ask the class, and how long that takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

WORDS_A_MINUTE, CHARACTERS_A_MINUTE = 130, 230  # said slowly; the second of Chinese
CELL_MINUTES = 1  # to explain a cell and to look at what it did
TEXT_ASKING = (
    "{lesson}: about {minutes} minutes to present, {asking} of them questions to the class"
)
TEXT_NO_NOTES = "{lesson}: about {minutes} minutes to present, no notes"
UNSHOWN = ("skip", "notes")
HEADING = re.compile(r"^#{1,3} (.+)", re.MULTILINE)
MINUTES = re.compile(r"[(\uff08](\d+) ?(?:min|分钟)[)\uff09]")
CHINESE = re.compile("[\u4e00-\u9fff]")


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
        if _slide_type(cell) == "notes":
            yield Note(heading, cell.source.strip())
        else:
            heading = (HEADING.findall(cell.source) or [heading])[-1]


def minutes_to_present(notebook: NotebookNode) -> float:
    """An estimate: text and cells that slides show, and questions. Running takes a minute more."""
    shown = [cell for cell in notebook.cells if _slide_type(cell) not in UNSHOWN]
    said = sum(_spoken_min(cell.source) for cell in shown if cell.cell_type == "markdown")
    cells = sum(cell.cell_type == "code" for cell in shown)
    asking = sum(note.minutes for note in notes_in(notebook))
    return said + CELL_MINUTES * cells + asking


def _spoken_min(text: str) -> float:
    characters = len(CHINESE.findall(text))
    words = len(CHINESE.sub(" ", text).split())
    return words / WORDS_A_MINUTE + characters / CHARACTERS_A_MINUTE


def described(lesson: str, notebook: NotebookNode) -> str:
    """The notes as lines, under one that says how many minutes the lesson takes."""
    notes = list(notes_in(notebook))
    asking = sum(note.minutes for note in notes)
    minutes = round(minutes_to_present(notebook))
    text = TEXT_ASKING if notes else TEXT_NO_NOTES
    whole = text.format(lesson=lesson, minutes=minutes, asking=asking)
    return "\n".join([whole, *map(str, notes)])


def _slide_type(cell: NotebookNode) -> str | None:
    return cell.metadata.get("slideshow", {}).get("slide_type")
