"""What otter-grader reads: a test a function, its settings, what its container installs.

The course does not need otter. Written for its "OK" format: https://otter-grader.readthedocs.io
"""

from __future__ import annotations

import json
import pprint

from ... import __version__

SOURCE = "https://github.com/d2lpar/d2lpar"
EXERCISE_CASES = ((10, ">>> import d2lpar as par\n>>> par.check({name}).status\n'right'"),)
# Sixty points at the limit, eighty at par, a hundred at the record; a case each.
CHALLENGE_CASES = tuple(
    (points, f">>> import d2lpar as par\n>>> par.challenge({{name}}).points >= {least}\nTrue")
    for points, least in ((60, 60), (20, 80), (20, 100))
)
CASES = {"check": EXERCISE_CASES, "challenge": CHALLENGE_CASES}
TEST = '''"""Otter's test of `{name}`, written by `d2lpar course assignment`."""

OK_FORMAT = True

test = {test}
'''


def test(name: str, kind: str) -> str:
    """The file of tests of one function; `kind` is "check" or "challenge"."""
    cases = [
        {"code": code.format(name=name), "points": points, "hidden": False, "locked": False}
        for points, code in CASES[kind]
    ]
    suite = {"cases": cases, "scored": True, "setup": "", "teardown": "", "type": "doctest"}
    content = {"name": name, "suites": [suite]}
    return TEST.format(name=name, test=pprint.pformat(content, width=96, sort_dicts=False))


def requirements() -> str:
    """What the autograder's container installs."""
    return f"d2lpar[lessons] @ git+{SOURCE}@v{__version__}\n"


def notebook_metadata(lesson: str) -> dict[str, dict[str, str]]:
    """What otter looks for in a notebook: it refuses one of another homework."""
    return {"otter": {"assignment_name": _assignment_name(lesson)}}


def configuration(lesson: str) -> str:
    """Otter's settings: the name of the homework, and every function's tests shown."""
    settings = {"assignment_name": _assignment_name(lesson), "show_stdout": True}
    return json.dumps(settings, indent=1) + "\n"


def _assignment_name(lesson: str) -> str:
    return f"homework_{lesson}"
