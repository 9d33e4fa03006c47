"""Records what par's solutions of the challenges look like, and prints pars and records.

`python tools/challenges.py [NAME …]` runs challenges.py and challenge_records.py of
notebooks/solutions, and writes the pictures' data of the first beside the grader. Run it when a
puzzle has changed.
"""

import json
import sys
from pathlib import Path

from d2lpar.checks.challenges.attempt import GRADING, PAR_RUNS
from d2lpar.checks.challenges.puzzles import ALL
from d2lpar.checks.grader import CLIENT

SOLUTIONS = Path(__file__).resolve().parent.parent / "notebooks" / "solutions"
GOOD, BEST = "challenges.py", "challenge_records.py"


def source(file):
    return (SOLUTIONS / file).read_text(encoding="utf-8")


def main(names):
    """Records the puzzles of these names, or all; 1 if a par or record is not what comes out."""
    runs = json.loads(PAR_RUNS.read_text(encoding="utf-8")) if PAR_RUNS.exists() else {}
    missed = 0
    for puzzle in ALL:
        if names and puzzle.name not in names:
            continue
        good = CLIENT.grade(GRADING, puzzle.name, source(GOOD))
        has_record = f"def {puzzle.name}(" in source(BEST)
        best = CLIENT.grade(GRADING, puzzle.name, source(BEST)) if has_record else good
        found = good.get("figure"), best.get("figure")
        expected = puzzle.par, puzzle.record
        for what, report, value in zip(("par", "record"), (good, best), expected, strict=True):
            figure = report.get("figure")
            if figure is None or abs(figure - value) > 1e-3 * max(value, 1e-9):
                missed += 1
                print(f"{puzzle.name}: {what} is {value:g}, and comes to {report['text']}")
        print(f"{puzzle.name}: par {found[0]}, record {found[1]}", flush=True)
        runs[puzzle.name] = good.get("picture") or {}
        text = json.dumps(runs, separators=(",", ":"))
        PAR_RUNS.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
