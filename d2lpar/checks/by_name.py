"""The check of an exercise, found by the name of the function that answers it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from ..timeline import kept
from ..timeline.printing import is_watched
from .still_running import told
from .verdict import OF_EXERCISE, Verdict


def check(answer: Callable) -> Verdict:
    """Check the answer to an exercise: a function with the name that the exercise gives it.

    It runs here, beside its check, and could deceive it: nobody is protected from himself.
    `d2lpar course grade` runs answers apart. While somebody looks on, a check that takes longer
    than ten seconds says where it is, and one that passes how much of the lesson is done.

    Raises ValueError for a function of another name, with the nearest, and TypeError for what is
    no function.
    """
    name = getattr(answer, "__name__", None)
    if not callable(answer) or name is None:
        raise TypeError(f"check takes the function itself, not {answer!r}: check(my_function)")
    checks = exercises()
    if name not in checks:
        nearest = difflib.get_close_matches(name, checks, n=1, cutoff=0)[0]
        raise ValueError(f"no exercise has a function named {name!r}; did you mean {nearest!r}?")
    with told(name):
        verdict = checks[name](answer)
    return _counted(name, verdict) if verdict and is_watched() else verdict


def _counted(name: str, verdict: Verdict) -> Verdict:
    """The same with the progress of the lesson below it."""
    from ..plots.widgets import progress  # the grader, which judges too, draws nothing

    kept.write(progress.EXERCISES, name, verdict.status)
    return replace(verdict, below=progress.line_with(name))


def exercises() -> dict[str, Callable[[Callable], Verdict]]:
    """The checks of all exercises, by the names of the functions that they check."""
    package = import_module(__package__)
    return {
        name: found
        for name in package.__all__
        if hasattr(found := getattr(package, name), OF_EXERCISE)
    }
