"""The course in another language.

    python -m translations todo zh                what has no translation of its present English
    python -m translations sheet zh 04 [--whole]  that of a notebook as a sheet for the translator
    python -m translations enter zh 04 FILE       such a sheet, translated, into the catalogue
    python -m translations check zh [04]          what is wrong with translations
    python -m translations write zh               the notebooks
    python -m translations record zh [04]         run them in the language, and store what they show
    python -m translations record zh --check      fail if that is not what is stored

It is run in the folder `tools`, or with it on the path.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import catalogues, generate, record, sheets
from .faults import faults, faults_of_message


def main() -> int:
    """Do what the arguments say. Returns the exit status: 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("todo", "sheet", "enter", "check", "write", "record"))
    parser.add_argument("language")
    parser.add_argument(
        "notebook",
        nargs="?",
        help="the beginning of its name: 04, deeper/04; or messages, labels, those of the package",
    )
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--whole", action="store_true", help="also what is translated")
    parser.add_argument("--check", action="store_true", help="of record: store nothing")
    given = parser.parse_args()
    texts = (*catalogues.notebooks(), *catalogues.pages(), *catalogues.OF_PACKAGE)
    chosen = [path for path in texts if str(path).startswith(given.notebook or "")]
    if not chosen:
        parser.error(f"no notebook begins with {given.notebook!r}")
    match given.do:
        case "todo":
            left = [(p, name) for p, name in generate.stale(given.language) if p in chosen]
            print(*(f"{path}: {name}" for path, name in left), sep="\n")
            return 1 if left else 0
        case "sheet":
            print(*(sheets.sheet(given.language, p, whole=given.whole) for p in chosen), end="")
        case "enter":
            (notebook,) = chosen
            text = given.file.read_text(encoding="utf-8")
            catalogues.enter(given.language, notebook, sheets.read(text))
        case "check":
            return _check(given.language, chosen)
        case "write":
            print(*generate.write(given.language), sep="\n")
        case "record":
            those = [path for path in chosen if path in catalogues.notebooks()]
            return max([record.attempt(given.language, n, check=given.check) for n in those])
    return 0


def _check(language: str, chosen: list[Path]) -> int:
    wrong = 0
    for notebook in chosen:
        for unit in catalogues.units(language, notebook):
            found = faults_of_message if catalogues.is_string(unit.cell) else faults
            for fault in found(language, unit.english, unit.translated) if unit.is_current else ():
                print(f"{notebook}: {unit.cell}: {fault}")
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
