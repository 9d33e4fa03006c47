"""Records what par's solutions of the challenges look like, and prints pars and records.

`python tools/challenges.py [NAME …]` runs notebooks/solutions/challenges.py, which is par, and
challenge_records.py, which no student's copy has. It writes, beside the grader, the data of par's
pictures, and the fingerprints by which a copy of either is known. Run it when a puzzle or a
solution has changed. `--seed 7` draws other cases, and writes nothing.
"""

import argparse
import json
import sys
from pathlib import Path

from d2lpar.checks.challenges import copies
from d2lpar.checks.challenges.attempt import GRADING, PAR_RUNS
from d2lpar.checks.challenges.puzzles import ALL
from d2lpar.checks.grader import CLIENT

ROOT = Path(__file__).resolve().parent.parent
GOOD = (ROOT / "notebooks" / "solutions" / "challenges.py").read_text(encoding="utf-8")
BEST = (ROOT / "tools" / "challenge_records.py").read_text(encoding="utf-8")
CLOSE = 0.02  # pars and records are those of one draw; others differ by less than the margin


def fingerprints():
    """Of each puzzle those of par's solution and the record's."""
    return {
        puzzle.name: sorted(
            one
            for text in (GOOD, BEST)
            if f"def {puzzle.name}(" in text
            for one in copies.prints(text, puzzle.name)
        )
        for puzzle in ALL
        if not puzzle.example
    }


def main(names, seed):
    """Records the puzzles of these names, or all; 1 if a par or record is not what comes out."""
    runs = json.loads(PAR_RUNS.read_text(encoding="utf-8")) if PAR_RUNS.exists() else {}
    missed = 0
    for puzzle in ALL:
        if names and puzzle.name not in names:
            continue
        good = CLIENT.grade(GRADING, puzzle.name, GOOD, seed=seed)
        has_record = f"def {puzzle.name}(" in BEST
        best = CLIENT.grade(GRADING, puzzle.name, BEST, seed=seed) if has_record else good
        found = good.get("figure"), best.get("figure")
        expected = puzzle.par, puzzle.record
        for what, report, value in zip(("par", "record"), (good, best), expected, strict=True):
            figure = report.get("figure")
            if figure is None or figure > value * (1 + CLOSE) + 1e-9:
                missed += 1
                print(f"{puzzle.name}: {what} is {value:g}, and comes to {figure} {report['text']}")
        print(f"{puzzle.name}: par {found[0]}, record {found[1]}", flush=True)
        if puzzle.on_clock and seed == 0:
            runs[puzzle.name] = good.get("picture") or {}
            text = json.dumps(runs, separators=(",", ":"))
            PAR_RUNS.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    if seed == 0:
        copies.FILE.write_text(json.dumps(fingerprints(), indent=1) + "\n", encoding="utf-8")
    return int(missed > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(main(given.names, given.seed))
