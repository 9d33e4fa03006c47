"""Text files that are replaced at once: a reader sees the old or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write `text` (UTF-8, lines end in a newline alone) under another name, then rename it.

    Raises OSError where that cannot be, and leaves the old file as it was.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
