"""The grader's process: student's functions run there, with limits, apart from who asks.

It knows neither puzzles nor exercises. A request names the module whose `grade(name, source)` it
calls: `checks.challenges.grading`, or `checks.exercise_grading`.
"""

from .client import CLIENT, LIMIT_BYTES, LIMIT_S, GraderError

__all__ = ["CLIENT", "LIMIT_BYTES", "LIMIT_S", "GraderError"]
