"""How long `Run all` of each lesson takes, on this machine.

Each lesson runs on a kernel of its own, in the world in which it was recorded. Run it, alone, with

    python benchmarks/bench_lessons.py [03 ...]

It exits with an error if a lesson takes longer than a minute, what a class can wait for. A busy
machine, or one with fewer than two cores, takes longer: the table says which machine it was.
"""

import os
import sys
import tomllib
from pathlib import Path

from machine import this_machine

from d2lpar.command.course.rehearsal import rehearse

ROOT = Path(__file__).parents[1]
TARGET_S = 60


def main(chosen: list[str]) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    os.environ.update(project["tool"]["d2lpar"]["recorded-world"])
    print(f"Run all on {this_machine()}, load {os.getloadavg()[0]:.1f} before")
    missed = 0
    for path in sorted((ROOT / "notebooks").glob("0[0-9]_*.ipynb")):
        if chosen and path.name[:2] not in chosen:
            continue
        found = rehearse(path)
        longest = max(found.cells, key=lambda cell: cell[2])
        missed += found.seconds > TARGET_S or bool(found.error)
        print(f"{path.stem:28}{found.seconds:6.1f} s, the longest cell {longest[2]:.1f} s", end=" ")
        print(found.error or f"(at most {TARGET_S} s wanted)", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
