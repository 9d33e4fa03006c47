"""`d2lpar course`: the lessons as a class works on them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...timeline.printing import say
from . import notebook_file, working_copy

WORDS = "d2lpar course"


def main(arguments: list[str]) -> int:
    """Run one of the commands; returns its exit status."""
    parser = argparse.ArgumentParser(WORDS, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    update = commands.add_parser("update", help="bring new lessons into my/, and keep your changes")
    update.add_argument("--quiet", action="store_true", help="say only where both have changed")
    update.set_defaults(run=_update)
    reset = commands.add_parser("reset", help="a fresh copy of a lesson; yours is put aside")
    reset.add_argument("lesson", help="its number: 03")
    reset.set_defaults(run=_reset)
    rehearse = commands.add_parser("rehearse", help="run a lesson once, and say what takes long")
    rehearse.add_argument("lesson", help="its number: 03")
    rehearse.set_defaults(run=_rehearse)
    notes = commands.add_parser("notes", help="what to ask the class in a lesson, and how long")
    notes.add_argument("lesson", help="its number: 03")
    notes.set_defaults(run=_notes)
    options = parser.parse_args(arguments)
    return options.run(options)


def _update(options: argparse.Namespace) -> int:
    course = working_copy.course_folder(Path.cwd())
    made = (course / working_copy.COPY).exists()
    steps = list(working_copy.update(course))
    for step in steps:
        if step.where or not (options.quiet or not made):
            say(str(step))
    if not made:
        say(f"made {working_copy.COPY}/ with {len(steps)} files: work there, {course.name} stays")
    elif not steps and not options.quiet:
        say(f"{working_copy.COPY}/ is up to date")
    return 0


def _reset(options: argparse.Namespace) -> int:
    for step in working_copy.reset(working_copy.course_folder(Path.cwd()), options.lesson):
        say(str(step))
    return 0


def _rehearse(options: argparse.Namespace) -> int:
    from .rehearsal import rehearse

    course = working_copy.course_folder(Path.cwd())
    found = rehearse(working_copy.lesson_file(course, options.lesson))
    say(str(found))
    return int(bool(found.error))


def _notes(options: argparse.Namespace) -> int:
    from . import notes

    file = working_copy.lesson_file(working_copy.course_folder(Path.cwd()), options.lesson)
    say(notes.described(file.stem, list(notes.notes_in(notebook_file.read(file)))))
    return 0
