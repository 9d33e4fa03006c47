"""The grader: a process of its own judges answers, each of which runs in a process of *its* own.

    who asks ── client ──> server: the judge ── remote ──> trials.starter ──> an answer's process

The judge knows what is expected and runs no answer; an answer's process knows neither what is
expected nor where reports go, and may do nothing but compute (`trials.confinement`). Between them
goes plain data (`trials.plain`). A request names the module whose `grade(name, source, limits)`
the judge calls: `checks.challenges.grading`, or `checks.exercise_grading`.
"""

from .client import CLIENT, LIMIT_BYTES, LIMIT_S, GraderError

__all__ = ["CLIENT", "LIMIT_BYTES", "LIMIT_S", "GraderError"]
