"""Results of grading as files: JUnit XML for graders of classrooms, JSON for everybody else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from ... import __version__
from ...checks.verdict import NOT_GRADED, NOT_YET, RIGHT
from .grading import UNREADABLE, Graded, Result
from .submission import TEXT_MISSING, kind_of

FORMAT = 1
# What a student's function says may be anything: no XML, no UTF-8, orders to a terminal.
UNPRINTABLE = re.compile("[^\t\n\r -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LINE = "{file}: {points} of {of} points"
NONE = "no cell defines"
TOGETHER = "    {what}: {names}"
MOST_NAMED = 10
TEXT_LEFT_OUT = "not graded, as no notebook, .py or challenges.json (unpack archives): {names}"
TEXT_LACKS = "the boundary around answers is not whole on this machine: {lacks}"
MOST_TEXT = 3000  # characters of what a student's function says or prints
OURS = (UNREADABLE, NOT_GRADED)  # errors, and no failures: nobody has judged the answer
DETAIL = "    {result.question}: {result.status}, {text}{cells}"


def junit(graded: Iterable[Graded], lesson: str, lacks: Sequence[str] = ()) -> str:
    """JUnit XML: a suite a submission, a case a question, with its points as a property.

    What is not right is a failure; what could not be read or graded an error. `lacks` is what
    the boundary around answers does not have here: a comment before all suites.
    """
    root = ElementTree.Element("testsuites", name=f"homework {lesson}")
    if lacks:
        root.append(ElementTree.Comment(lacks_in_words(lacks).replace("--", "- -")))
    for each in graded:
        _suite(root, each)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def scores(graded: Iterable[Graded], lesson: str, lacks: Sequence[str] = ()) -> str:
    """JSON: for each submission its points, and status, text and cells of each question."""
    content = {
        "format": FORMAT,
        "course": __version__,
        "lesson": lesson,
        "boundary_lacks": [_clean(each) for each in lacks],
        "submissions": [_entry(each) for each in graded],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def in_words(each: Graded) -> str:
    """A submission's points, and what was not right."""
    head = LINE.format(file=each.path, points=each.points, of=each.of)
    return "\n".join(map(_clean, [head, *_details(each.results)]))


def left_out_in_words(paths: Sequence[Path]) -> str:
    """Which files were left out; of many, the first."""
    names = [f"{path} ({kind})" if (kind := kind_of(path)) else str(path)
             for path in paths[:MOST_NAMED]]  # fmt: skip
    if len(paths) > MOST_NAMED:
        names.append(f"and {len(paths) - MOST_NAMED} more")
    return _clean(TEXT_LEFT_OUT.format(names=", ".join(names)))


def lacks_in_words(lacks: Sequence[str]) -> str:
    """What the boundary around answers does not have on this machine."""
    return _clean(TEXT_LACKS.format(lacks="; ".join(lacks)))


def _details(results: Sequence[Result]) -> Iterator[str]:
    """What was not right: what is the same for many questions, once."""
    if results and results[0].status == UNREADABLE:
        yield f"    {results[0].text}"
        return
    absent = [each for each in results if each.text == TEXT_MISSING.format(name=each.question)]
    stubs = [each for each in results if each.status == NOT_YET]
    for what, together in ((NOT_YET, stubs), (NONE, absent)):
        if together:
            yield TOGETHER.format(what=what, names=", ".join(each.question for each in together))
    for result in results:
        if result.status != RIGHT and result not in (*stubs, *absent):
            text = " ".join(result.text.split())  # no line that could be somebody else's points
            yield DETAIL.format(result=result, text=text, cells=_cells(result))


def _cells(result: Result) -> str:
    numbers = ", ".join(map(str, result.cells))
    ran = numbers and result.status != NOT_YET
    return f" (ran parts of cell {numbers})" if ran else ""


def _entry(each: Graded) -> dict:
    return {
        "file": _clean(each.path.as_posix()),
        "points": each.points,
        "of": each.of,
        "questions": [
            {
                "name": result.question,
                "status": result.status,
                "points": result.points,
                "of": result.of,
                "cells": list(result.cells),
                "text": _clean(result.text),
                "printed": _clean(result.printed),
            }
            for result in each.results
        ],
    }


def _suite(root: ElementTree.Element, each: Graded) -> None:
    failed = [result for result in each.results if result.status not in (RIGHT, *OURS)]
    unread = [result for result in each.results if result.status in OURS]
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=_clean(each.path.as_posix()),
        tests=str(len(each.results)),
        failures=str(len(failed)),
        errors=str(len(unread)),
        skipped="0",
    )
    for result in each.results:
        _case(suite, each.path, result)


def _case(suite: ElementTree.Element, path: Path, result: Result) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_clean(path.with_suffix("").as_posix()),  # all files may have the same name
        name=result.question,
    )
    properties = ElementTree.SubElement(case, "properties")
    for name, value in (("points", result.points), ("of", result.of)):
        ElementTree.SubElement(properties, "property", name=name, value=str(value))
    if result.status != RIGHT:
        kind = "error" if result.status in OURS else "failure"
        text = _clean(result.text)
        told = ElementTree.SubElement(case, kind, type=result.status, message=text)
        told.text = text + _cells(result)
    if result.printed:
        ElementTree.SubElement(case, "system-out").text = _clean(result.printed)


def _clean(text: str) -> str:
    shown = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"
    return UNPRINTABLE.sub("\ufffd", shown)
