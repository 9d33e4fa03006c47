"""`python -m d2lpar.checks.challenges FILE …`: grade files of scores anew, a line an answer."""

from __future__ import annotations

import argparse

from ...timeline.printing import say
from .regrading import regrade


def main(arguments: list[str] | None = None) -> int:
    """Print file, puzzle, points claimed and points found, separated by tabs; 1 if any differ.

    "-" in place of points found: that answer could not be graded.
    """
    parser = argparse.ArgumentParser(description="Grade files of scores anew.")
    parser.add_argument("files", nargs="+", help="challenges.json of students")
    found = regrade(parser.parse_args(arguments).files)
    for one in found:
        points = "-" if one.points is None else one.points
        say(f"{one.file}\t{one.name}\t{one.claimed}\t{points}\t{one.text}")
    return int(not all(one.agrees for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
