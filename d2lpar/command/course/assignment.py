"""A homework: the exercises of a lesson and its deeper half, with the prose that asks them.

In `my/assignments/05/`, `student/` has the notebook, without solutions, and otter's tests;
`autograder/` has the same tests and what else `otter generate` makes an archive of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ... import locale
from ...checks.exercise_grading import BY_HAND
from ...checks.grader.source import is_stub
from ...timeline import whole_file
from . import languages, notebook_file, otter_format, working_copy

FOLDER = "assignments"  # in the student's copy of the course
METADATA = "d2lpar_assignment"  # of a notebook: the lesson whose homework it is
CORE, ANSWER = "core", "answer"  # tags of a stub whose answer the lesson has, and of that answer
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
EXERCISE, CHALLENGE = "check", "challenge"  # what a stub's cell calls
POINTS = {EXERCISE: 10, CHALLENGE: 100}
# The heading above the first task of a page: "## Exercises", and "### " further down.
SECTION = re.compile(r"\A## .*\n+(?=(?:.*\n)*### )")
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)[^)]*\)")
TITLE = """# Homework {lesson}: {title}

Write each function in its cell. You may add cells, and functions that it needs. The last line of
the cell tells you whether it is right. {points} points.

The tasks are those of the lesson and of its deeper half, word for word: what they call "above"
stands there.

The grader takes your functions, and the imports, functions and constants that they use, and nothing
else: no other cell of this notebook is run. Your functions may use `torch`, `nn`, `F`, `dist`,
`math` and `par`."""
SETUP = """import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar as par"""
GUIDE = """# Homework {lesson}, for instructors

{questions} functions, {points} points. Hand out `student/`: the notebook goes into `my/` of a
student's copy of the course, where `make lab` opens it; its `tests/` are for otter alone. Collect
the notebooks in a folder, with or without a folder for each student, and say in a copy of the
course:

    .venv/bin/d2lpar course grade FOLDER --lesson {lesson} --junit out.xml --scores scores.json

It runs the functions that are asked for, each in a process of its own with limits of time and
memory, and nothing else of a notebook.

With otter-grader (`pip install otter-grader`), say in `autograder/`:

    otter generate -t tests -r requirements.txt -c otter_config.json

It makes the archive that Gradescope takes, and `otter run` and `otter grade`. Otter runs the whole
notebook, in its container. `requirements.txt` says where the container gets the course from.
{left_out}"""
LEFT_OUT = "\nNot in it, because an answer starts programs: {names}. Grade that by hand.\n"
ERROR_NONE = "lesson {lesson} has no exercise: {those} have"
ERROR_THERE = "{folder} is there already: move it away, or name another with --to"


@dataclass(frozen=True)
class Question:
    """A function to write: its name, what checks it, and the cells that ask for it."""

    name: str
    kind: str
    cells: tuple[NotebookNode, ...]

    @property
    def points(self) -> int:
        """Those of a right answer; of a challenge, at the record."""
        return POINTS[self.kind]


def lesson_number(lesson: str) -> str:
    """Two digits, as in the names of files. Raises ValueError for what is no number."""
    if not re.fullmatch("[0-9]{1,2}", lesson):
        raise ValueError(f"no lesson is called {lesson!r}: say its number, such as 04")
    return lesson.zfill(2)


def questions(course: Path, lesson: str) -> list[Question]:
    """What a lesson asks, and then its deeper half. Raises ValueError for one that asks nothing."""
    found = [
        question
        for page in _pages(course, lesson)
        for question in _asked(page)
        if question.name not in BY_HAND
    ]
    if not found:
        those = sorted(
            {
                path.name[:2]
                for path in (course / working_copy.SOURCE).glob("[0-9]*.ipynb")
                if any(any(_asked(page)) for page in _pages(course, path.name[:2]))
            }
        )
        raise ValueError(ERROR_NONE.format(lesson=lesson, those=", ".join(those)))
    return found


def write(course: Path, lesson: str, to: Path | None = None) -> list[Path]:
    """Write a homework, as a whole; returns its files.

    Raises ValueError if the folder is there already, or the lesson asks nothing.
    """
    lesson = lesson_number(lesson)
    asked = questions(course, lesson)
    folder = to or course / working_copy.COPY / FOLDER / lesson
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(ERROR_THERE.format(folder=folder))
    files = _files(course, lesson, asked)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole_file.write(path, text)
    return [folder / name for name in files]


def student_notebook(lesson: str, title: str, asked: list[Question]) -> NotebookNode:
    """The notebook that students fill in."""
    v4, points = nbformat.v4, sum(question.points for question in asked)
    cells = [
        v4.new_markdown_cell(
            locale.translated(TITLE.format(lesson=lesson, title=title, points=points)),
            id=f"homework-{lesson}",
        ),
        v4.new_code_cell(SETUP, id=f"homework-{lesson}-imports"),
    ]
    cells += [_handed_out(cell) for question in asked for cell in question.cells]
    metadata = {"kernelspec": KERNEL, METADATA: lesson, **otter_format.notebook_metadata(lesson)}
    return v4.new_notebook(cells=cells, metadata=metadata)


def _files(course: Path, lesson: str, asked: list[Question]) -> dict[str, str]:
    pages = _pages(course, lesson)
    notebook = student_notebook(lesson, _title(pages[0]), asked)
    tests = {f"{each.name}.py": otter_format.test(each.name, each.kind) for each in asked}
    left_out = [
        question.name for page in pages for question in _asked(page) if question.name in BY_HAND
    ]
    guide = GUIDE.format(
        lesson=lesson,
        questions=len(asked),
        points=sum(question.points for question in asked),
        left_out=LEFT_OUT.format(names=", ".join(left_out)) if left_out else "",
    )
    return {
        "README.md": locale.translated(guide),
        f"student/homework_{lesson}.ipynb": notebook_file.serialised(notebook),
        **{f"student/tests/{name}": text for name, text in tests.items()},
        **{f"autograder/tests/{name}": text for name, text in tests.items()},
        "autograder/requirements.txt": otter_format.requirements(),
        "autograder/otter_config.json": otter_format.configuration(lesson),
    }


def _pages(course: Path, lesson: str) -> list[NotebookNode]:
    """The lesson and its deeper half, whose tasks go on under the heading of the lesson's."""
    folder = languages.folder_of(course / working_copy.SOURCE, locale.chosen())
    pattern = f"{lesson_number(lesson)}_*.ipynb"
    own, deeper = (
        [notebook_file.read(path) for path in sorted(place.glob(pattern))]
        for place in (folder, folder / "deeper")
    )
    if any(any(_asked(page)) for page in own):
        for cell in [cell for page in deeper for cell in page.cells]:
            cell.source = SECTION.sub("", cell.source)
    return own + deeper


def _asked(notebook: NotebookNode) -> Iterator[Question]:
    """The stubs, each with all from the heading above it, but for what asks another.

    The core of a lesson is no homework: its answer stands folded under it.
    """
    since_heading: list[NotebookNode] = []
    for cell in notebook.cells:
        if {CORE, ANSWER} & set(cell.metadata.get("tags", [])):
            continue
        if cell.cell_type == "markdown" and cell.source.startswith("#"):
            since_heading = []
        since_heading.append(cell)
        found = _stub(cell)
        if found is not None:
            yield Question(*found, tuple(since_heading))
            since_heading = []


def _stub(cell: NotebookNode) -> tuple[str, str] | None:
    """Name and kind of the function that a cell asks for, if it does."""
    called = re.search(rf"^par\.({EXERCISE}|{CHALLENGE})\((\w+)\)\s*\Z", cell.source, re.MULTILINE)
    if cell.cell_type != "code" or not called or not is_stub(cell.source, called[2]):
        return None
    return called[2], called[1]


def _handed_out(cell: NotebookNode) -> NotebookNode:
    """A cell without outputs, and without links to what lies beside the lesson."""
    if cell.cell_type == "code":
        return nbformat.v4.new_code_cell(cell.source, id=cell.id)
    return nbformat.v4.new_markdown_cell(RELATIVE_LINK.sub(r"\1", cell.source), id=cell.id)


def _title(notebook: NotebookNode) -> str:
    heads = [cell.source for cell in notebook.cells if cell.source.startswith("# ")]
    return heads[0].splitlines()[0].removeprefix("# ") if heads else ""
