"""Puzzles that the simulated clock, memory, hazards and schedules grade: notebook 10.

    par.challenge(spread)                       # in the cell of the function
    print(par.challenges.score_table())

An answer runs in a process of its own (`d2lpar.trials`): with clean modules, a machine and a
clock, and limits of time and memory. The judge, in another process, compares plain data.
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
