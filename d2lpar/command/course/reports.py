"""Results of grading as files: JUnit XML for graders of classrooms, JSON for everybody else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from ... import __version__
from ...checks.verdict import RIGHT
from .grading import UNREADABLE, Graded, Result

FORMAT = 1
NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LINE = "{file}: {points} of {of} points"
DETAIL = "    {result.question}: {result.status}, {result.text}{cells}"


def junit(graded: Iterable[Graded], lesson: str) -> str:
    """JUnit XML: a suite a submission, a case a question, with its points as a property.

    What is not right is a failure; a file that cannot be read an error.
    """
    root = ElementTree.Element("testsuites", name=f"homework {lesson}")
    for each in graded:
        _suite(root, each)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def scores(graded: Iterable[Graded], lesson: str) -> str:
    """JSON: for each submission its points, and status, text and cells of each question."""
    content = {
        "format": FORMAT,
        "course": __version__,
        "lesson": lesson,
        "submissions": [_entry(each) for each in graded],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def in_words(each: Graded) -> str:
    """A submission's points, and what was not right."""
    details = [
        DETAIL.format(result=result, cells=_cells(result))
        for result in each.results
        if result.status != RIGHT
    ]
    return "\n".join([LINE.format(file=each.path, points=each.points, of=each.of), *details])


def _cells(result: Result) -> str:
    numbers = ", ".join(map(str, result.cells))
    return f" (ran parts of cell {numbers})" if numbers else ""


def _entry(each: Graded) -> dict:
    return {
        "file": each.path.as_posix(),
        "points": each.points,
        "of": each.of,
        "questions": [
            {
                "name": result.question,
                "status": result.status,
                "points": result.points,
                "of": result.of,
                "cells": list(result.cells),
                "text": result.text,
                "printed": result.printed,
            }
            for result in each.results
        ],
    }


def _suite(root: ElementTree.Element, each: Graded) -> None:
    failed = [result for result in each.results if result.status not in (RIGHT, UNREADABLE)]
    unread = [result for result in each.results if result.status == UNREADABLE]
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
        suite, "testcase", classname=_clean(path.stem), name=result.question
    )
    properties = ElementTree.SubElement(case, "properties")
    for name, value in (("points", result.points), ("of", result.of)):
        ElementTree.SubElement(properties, "property", name=name, value=str(value))
    if result.status != RIGHT:
        kind = "error" if result.status == UNREADABLE else "failure"
        text = _clean(result.text)
        told = ElementTree.SubElement(case, kind, type=result.status, message=text)
        told.text = text + _cells(result)
    if result.printed:
        ElementTree.SubElement(case, "system-out").text = _clean(result.printed)


def _clean(text: str) -> str:
    """Without what XML cannot hold: a student's function may print anything."""
    return NO_XML.sub("\ufffd", text)
