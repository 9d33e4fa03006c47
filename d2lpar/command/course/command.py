"""`d2lpar course`: the lessons as a class works on them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Annotated

from ...timeline import whole_file
from ...timeline.inputs import Kind, Seconds, is_amount, option
from ...timeline.printing import say
from . import notebook_file, working_copy

WORDS = "d2lpar course"
GB = Annotated[
    float,
    Kind("a number of GB from 0.01 to 10000", lambda v: is_amount(v) and 0.01 <= v <= 10000),
]
TEXT_MADE = "made my/ with {files} files: work there; notebooks/ stays as it is"
TEXT_ASSIGNMENT = (
    "{notebook}, and {others} files for graders. {guide}, two folders up, says what to hand out, "
    "and how to grade what comes back."
)
TEXT_GRADING = (
    "homework {lesson}: {submissions} submissions, {questions} functions each. "
    "An answer is ended after {limit_s:g} s of processor time."
)


def main(arguments: list[str]) -> int:
    """Run one of the commands; returns its exit status."""
    parser = argparse.ArgumentParser(WORDS, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    update = commands.add_parser("update", help="bring new lessons into my/, and keep your changes")
    update.add_argument(
        "--quiet", action="store_true", help="say only what has moved, or both have changed"
    )
    update.set_defaults(run=_update)
    lang = commands.add_parser("lang", help="the language of my/: en, zh; what you did stays")
    lang.add_argument("language")
    lang.add_argument("--quiet", action="store_true", help="say only what both have changed")
    lang.set_defaults(run=_lang)
    reset = commands.add_parser("reset", help="a fresh copy of a lesson; yours is put aside")
    reset.add_argument("lesson", help="its number: 03")
    reset.set_defaults(run=_reset)
    rehearse = commands.add_parser("rehearse", help="run a lesson once, and say what takes long")
    rehearse.add_argument("lesson", help="its number: 03")
    rehearse.set_defaults(run=_rehearse)
    notes = commands.add_parser("notes", help="what to ask the class in a lesson, and how long")
    notes.add_argument("lesson", help="its number: 03")
    notes.set_defaults(run=_notes)
    progress = commands.add_parser("progress", help="how far you are in each lesson")
    progress.set_defaults(run=_progress)
    _add_homework(commands)
    options = parser.parse_args(arguments)
    return options.run(options)


def _add_homework(commands: argparse._SubParsersAction) -> None:
    assignment = commands.add_parser(
        "assignment", help="write a lesson's homework: for students, and for a grader"
    )
    assignment.add_argument("lesson", help="its number: 05; 10 are the challenges")
    assignment.add_argument("--to", type=Path, help="a folder (my/assignments/05)")
    assignment.set_defaults(run=_assignment)
    grade = commands.add_parser(
        "grade", help="grade notebooks, .py files or challenges.json, or folders of them"
    )
    grade.add_argument("paths", nargs="+", type=Path, metavar="FOLDER_OR_FILE")
    grade.add_argument("--lesson", help="its number, where the files do not say: 04")
    grade.add_argument("--junit", type=Path, help="write JUnit XML to this file")
    grade.add_argument("--scores", type=Path, help="write points and texts as JSON to this file")
    grade.add_argument(
        "--limit-s", type=option(Seconds), default=60.0, help="processor time of one answer (60)"
    )
    grade.add_argument(
        "--limit-gb", type=option(GB), default=4.0, help="memory of one answer, beyond torch (4)"
    )
    grade.set_defaults(run=_grade)


def _update(options: argparse.Namespace) -> int:
    course = working_copy.course_folder(Path.cwd())
    made = (course / working_copy.COPY).exists()
    steps = list(working_copy.update(course))
    for step in steps:
        if step.where or step.was or not (options.quiet or not made):
            say(str(step))
    if not made:
        say(TEXT_MADE.format(files=len(steps)))
    elif not steps and not options.quiet:
        say(f"{working_copy.COPY}/ is up to date")
    return 0


def _lang(options: argparse.Namespace) -> int:
    working_copy.choose_language(working_copy.course_folder(Path.cwd()), options.language)
    return _update(options)


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
    say(notes.described(file.stem, notebook_file.read(file)))
    return 0


def _progress(_: argparse.Namespace) -> int:
    from . import progress  # it needs torch: challenges do

    say(progress.described(working_copy.course_folder(Path.cwd()) / working_copy.COPY))
    return 0


def _assignment(options: argparse.Namespace) -> int:
    from . import assignment  # it needs torch: checks do

    course = working_copy.course_folder(Path.cwd())
    guide, notebook, *others = assignment.write(course, options.lesson, options.to)
    say(TEXT_ASSIGNMENT.format(notebook=notebook, others=len(others), guide=guide.name))
    return 0


def _grade(options: argparse.Namespace) -> int:
    from . import assignment, grading, reports, submission

    course = working_copy.course_folder(Path.cwd())
    outputs = {"--junit": options.junit, "--scores": options.scores}
    submissions = grading.read_all(options.paths)
    others = submission.left_out(options.paths)
    whole_file.require_apart(outputs, {each.path: "a submission" for each in submissions})
    lesson = assignment.lesson_number(options.lesson or grading.lesson_of(submissions))
    questions = assignment.questions(course, lesson)
    text = TEXT_GRADING.format(
        lesson=lesson,
        submissions=len(submissions),
        questions=len(questions),
        limit_s=options.limit_s,
    )
    graded = []
    with whole_file.tried(outputs) as files:
        say(text, stream=sys.stderr, flush=True)
        lacks = grading.lacks()
        if lacks:
            say(reports.lacks_in_words(lacks), stream=sys.stderr, flush=True)
        for each in grading.grade(
            grading.of_homework(submissions, lesson),
            questions,
            limit_s=options.limit_s,
            limit_bytes=int(options.limit_gb * 1e9),
        ):
            say(reports.in_words(each), flush=True)
            graded.append(each)
        texts = {
            "--junit": reports.junit(graded, lesson, lacks),
            "--scores": reports.scores(graded, lesson, lacks),
        }
        problems = [file.write_or_rescue(texts[option]) for option, file in files.items()]
    if others:
        say(reports.left_out_in_words(others), stream=sys.stderr)
    for problem in filter(None, problems):
        say(f"d2lpar: {problem}", stream=sys.stderr)
    if any(problems):
        return whole_file.NOT_WRITTEN
    return int(any(each.points < each.of for each in graded))
