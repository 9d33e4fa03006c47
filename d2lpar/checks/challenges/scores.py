"""The file of scores, which a student hands in: for each puzzle the best answer so far."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import d2lpar

from ...timeline import whole_file

FOLDER, FILE = "scores", "challenges.json"
FORMAT = 1
ERROR_FILE = "{path} is no file of scores ({error}): move it away, and a new one is written"


def path() -> Path:
    """`scores/challenges.json` in the notebook's folder, or in that which D2LPAR_SCORES names."""
    return Path(os.environ.get("D2LPAR_SCORES") or FOLDER) / FILE


def read(file: Path) -> dict[str, dict]:
    """The entries of a file by puzzle; none if it is not there. Raises ValueError for others."""
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return dict(found["challenges"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(ERROR_FILE.format(path=file, error=error)) from None


def keep(name: str, report: dict, source: str) -> bool:
    """Write an answer down if it is the best of its puzzle; whether it is."""
    file = path()
    entries = read(file)
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
    file.parent.mkdir(parents=True, exist_ok=True)
    text = {"format": FORMAT, "challenges": dict(sorted(entries.items()))}
    whole_file.write(file, json.dumps(text, indent=1) + "\n")
    return True
