"""The file of scores, which a student hands in: for each puzzle the best answer so far."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import d2lpar

from ...timeline import kept
from ..verdict import is_number

FOLDER, FILE = "scores", "challenges.json"
FORMAT = 1
ERROR_FILE = "{path} is no file of scores ({error}): move it away, and a new one is written"


def path() -> Path:
    """`scores/challenges.json` in the notebook's folder, or in that which D2LPAR_SCORES names."""
    return Path(os.environ.get("D2LPAR_SCORES") or FOLDER) / FILE


def read(file: Path) -> dict[str, dict]:
    """The entries of a file by puzzle; none if it is not there. Raises ValueError for others."""
    try:
        return dict(kept.json_object(file)["challenges"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(ERROR_FILE.format(path=file, error=error)) from None


def keep(name: str, report: dict, source: str) -> bool:
    """Write an answer down if it is the best of its puzzle; whether it is.

    A file that is none of scores is put aside. Raises OSError where nothing can be written.
    """
    with kept.changed(path(), _entries) as found:
        entries = _entries(found)
        before = entries.get(name)
        if before is not None and before["points"] >= report["points"]:
            best = before["figure"] > report["figure"] and before["points"] == report["points"]
            if not best:
                return False
        entries[name] = {
            "points": report["points"],
            "figure": report["figure"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "course": d2lpar.__version__,
            "sha256": hashlib.sha256(source.encode()).hexdigest(),
            "source": source,
        }
        found |= {"format": FORMAT, "challenges": dict(sorted(entries.items()))}
    return True


def _entries(found: dict) -> dict[str, dict]:
    """The entries in what our own file holds. Raises ValueError for what is none."""
    entries = found.get("challenges", {} if not found else None)
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
        raise ValueError("it does not list challenges with their points")
    return dict(entries)


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and all(is_number(entry.get(n)) for n in ("points", "figure"))
