"""Puzzles that the simulated clock, memory, hazards and schedules grade: notebook 09.

    par.challenge(spread)                       # in the cell of the function
    print(par.challenges.score_table())

An answer runs in a process of its own, which starts with clean modules, has its own machine and
clock, and limits of time and memory; the judge, in another one, compares plain data: `d2lpar.trials`.
"""

from . import capstone
from .attempt import Attempt, challenge, challenge_source, score_table
from .puzzle import Outcome, Puzzle
from .puzzles import PUZZLES
from .regrading import regrade

__all__ = [
    "PUZZLES",
    "Attempt",
    "Outcome",
    "Puzzle",
    "capstone",
    "challenge",
    "challenge_source",
    "regrade",
    "score_table",
]
