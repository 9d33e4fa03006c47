"""`d2lpar bug`: the museum of famous bugs, in a terminal.

A room is a notebook: its first text tells the story, the cells before the visitor's repair are the
program. Nothing of a room is written anywhere else.
"""

from __future__ import annotations

import argparse
import linecache
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from .. import locale
from ..timeline.printing import say
from .course import languages, notebook_file, working_copy

BROKEN, REPAIR = "broken", "repair"  # tags of cells
LEFT_OUT = "install"
WIDTH = 92  # of texts, in characters
LINK = re.compile(r"\[([^\]]+)\]\((https?://[^)]+)\)")
HEADING = re.compile(r"# \D+?(\d+)[^\d:\uff1a]*[:\uff1a] ?(.+)")  # "Room 1: …", in any language
LISTED = "{number:3}  {title}\n     {line}"
OPENING = "Bugs that programs for several GPUs had. `d2lpar bug 7` runs one on virtual GPUs.\n"
ENDING = "Why, and how would you repair it? Open {path}"
NO_ROOM = "there is no room {asked}: the museum has rooms 1 to {last}"


@dataclass(frozen=True)
class Room:
    """A bug: what it is called, who had it, and the program (`shown` are the lines that are wrong,
    from 1, the last not included)."""

    path: Path
    number: int
    title: str
    line: str
    story: str
    program: str
    shown: range

    @classmethod
    def of(cls, path: Path) -> Room:
        """The room in a notebook."""
        notebook = notebook_file.read(path)
        text = next(cell.source for cell in notebook.cells if HEADING.match(cell.source))
        heading, line, *story = text.split("\n\n")
        found = HEADING.fullmatch(heading)
        assert found is not None, "tests see to it"
        lines, shown = _program(notebook)
        return cls(path, int(found[1]), found[2], line.strip("*"), "\n\n".join(story), lines, shown)

    def run(self) -> None:
        """Run the program here; it prints what it does."""
        name = f"{self.path.stem}.py"
        lines = self.program.splitlines(keepends=True)
        linecache.cache[name] = (len(self.program), None, lines, name)
        exec(compile(self.program, name, "exec"), {"__name__": "__main__"})

    def listing(self) -> str:
        """The lines that are wrong, with their numbers."""
        lines = self.program.splitlines()
        return "\n".join(f"{n:4}  {lines[n - 1]}".rstrip() for n in self.shown)


def _program(notebook: NotebookNode) -> tuple[str, range]:
    """The code before the visitor's repair, and which of its lines are the broken function's."""
    lines: list[str] = []
    shown = range(0)
    for cell in notebook_file.code_cells(notebook):
        if REPAIR in notebook_file.tags(cell):
            break
        if LEFT_OUT in notebook_file.tags(cell):
            continue
        begin = len(lines) + 1
        lines += cell.source.splitlines()
        if BROKEN in notebook_file.tags(cell):
            shown = range(begin, len(lines) + 1)
        lines += ["", ""]
    return "\n".join(lines), shown


def rooms(course: Path) -> list[Room]:
    """All rooms of a copy of the course, in order, in the reader's language."""
    lessons = languages.folder_of(course / working_copy.SOURCE, locale.chosen())
    folder = lessons / working_copy.MUSEUM
    return [Room.of(path) for path in sorted(folder.glob("[0-9]*.ipynb"))]


def main(arguments: list[str]) -> int:
    """List the bugs, or run one. Raises ValueError outside of the course, and for a room that
    there is not."""
    parser = argparse.ArgumentParser("d2lpar bug", description=__doc__.partition("\n")[0])
    parser.add_argument("number", nargs="?", help="of a room: run its program; default: list all")
    asked = parser.parse_args(arguments).number
    course = working_copy.course_folder(Path.cwd())
    found = rooms(course)
    if asked is None:
        say(OPENING)
        for room in found:
            say(LISTED.format(number=room.number, title=room.title, line=room.line))
        return 0
    chosen = [room for room in found if str(room.number) == asked.lstrip("0")]
    if not chosen:
        raise ValueError(NO_ROOM.format(asked=repr(asked), last=len(found)))
    _visit(chosen[0], course)
    return 0


def _visit(room: Room, course: Path) -> None:
    say(f"{room.number}. {room.title}\n   {room.line}\n")
    for paragraph in LINK.sub(r"\1 <\2>", room.story).split("\n\n"):
        say(_filled(_plain(paragraph)), flush=True)
    say(f"\n{room.listing()}\n", flush=True)
    room.run()
    say(f"\n{ENDING.format(path=room.path.relative_to(course))}")


def _filled(text: str) -> str:
    """In lines that fit: Chinese has no spaces to break them at, and its characters are wide."""
    if locale.columns(text) == len(text):
        return textwrap.fill(text, WIDTH, break_long_words=False)
    return textwrap.fill(text, WIDTH // 2)


def _plain(text: str) -> str:
    """Without Markdown's marks for code and emphasis."""
    return re.sub(r"[`*]", "", text)
