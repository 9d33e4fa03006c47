"""What a student's runs leave for later ones: small JSON files in a folder beside the notebook."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from . import whole_file

FOLDER = ".d2lpar"  # in the folder of the notebook
VARIABLE = "D2LPAR_KEEP"  # another folder, or "no"
NOTHING = "no"


def folder() -> Path | None:
    """Where things are kept, or None if `D2LPAR_KEEP=no` asks for nothing to be."""
    chosen = os.environ.get(VARIABLE) or FOLDER
    return None if chosen == NOTHING else Path(chosen).expanduser().absolute()


def read(name: str) -> dict:
    """What was kept under a name; empty if there is nothing that can be read."""
    where = folder()
    if where is not None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((where / f"{name}.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
    return {}


def write(name: str, key: str, value: object) -> None:
    """Keep `value` under a name and a key, beside what is there. Where nothing can be written,
    nothing is kept: a lesson goes on without."""
    where = folder()
    if where is None:
        return
    text = json.dumps(read(name) | {key: value}, indent=1, ensure_ascii=False)
    with contextlib.suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        whole_file.write(where / f"{name}.json", text + "\n")
