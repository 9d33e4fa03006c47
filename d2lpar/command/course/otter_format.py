"""What otter-grader reads: a test a function, its settings, what its container installs.

The course does not need otter. Written for its "OK" format: https://otter-grader.readthedocs.io
"""

from __future__ import annotations

import json
import pprint

from ... import __version__, published_at, requirement

# A doctest shows what came instead: the verdict says why an answer is wrong.
EXERCISE_CASE = """>>> import d2lpar as par
>>> verdict = par.check({name})
>>> 'right' if verdict else verdict
'right'"""
CHALLENGE_CASE = """>>> import d2lpar as par
>>> attempt = par.challenge({name})
>>> 'reached' if attempt.points >= {least} else attempt
'reached'"""
# Points of a case, and the least that a challenge must have earned: at the limit, par, the record.
CHALLENGE_STEPS = ((60, 60), (20, 80), (20, 100))
EXERCISE_POINTS = 10
NO_ADDRESS = (
    "# Name here what pip installs: d2lpar[lessons] @ git+ADDRESS, of your copy of the course\n"
)
MARK = "OK_FORMAT = True"  # a line of every file of tests
TEST = f'''"""Otter's test of `{{name}}`, written by `d2lpar course assignment`."""

{MARK}

test = {{test}}
'''


def test(name: str, kind: str) -> str:
    """The file of tests of one function; `kind` is "check" or "challenge"."""
    if kind == "check":
        cases = [_case(EXERCISE_CASE.format(name=name), EXERCISE_POINTS)]
    else:
        cases = [
            _case(CHALLENGE_CASE.format(name=name, least=least), points)
            for points, least in CHALLENGE_STEPS
        ]
    suite = {"cases": cases, "scored": True, "setup": "", "teardown": "", "type": "doctest"}
    content = {"name": name, "suites": [suite]}
    return TEST.format(name=name, test=pprint.pformat(content, width=96, sort_dicts=False))


def requirements() -> str:
    """What the autograder's container installs; the teacher says it, if no address is known."""
    if published_at() is None:
        return NO_ADDRESS
    return requirement("lessons", f"v{__version__}") + "\n"


def notebook_metadata(lesson: str) -> dict[str, dict[str, str]]:
    """What otter looks for in a notebook: it refuses one of another homework."""
    return {"otter": {"assignment_name": _assignment_name(lesson)}}


def configuration(lesson: str) -> str:
    """Otter's settings: the name of the homework, and every function's tests shown."""
    settings = {"assignment_name": _assignment_name(lesson), "show_stdout": True}
    return json.dumps(settings, indent=1) + "\n"


def _case(code: str, points: int) -> dict[str, object]:
    return {"code": code, "points": points, "hidden": False, "locked": False}


def _assignment_name(lesson: str) -> str:
    return f"homework_{lesson}"
