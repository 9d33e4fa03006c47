"""Files that are replaced at once: a reader sees the old or the new one, never a part.

What lies beside them is somebody's: a name for what is unfinished is one that nothing has.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write `text` (UTF-8, lines end in a newline alone) under another name, then rename it.

    A link stays a link: what it leads to is written. Raises OSError where that cannot be, and
    leaves the old file as it was.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """The same with bytes."""
    path = Path(os.path.realpath(path))
    unfinished = beside(path)
    try:
        unfinished.write_bytes(content)
        before = path.stat() if path.exists() else None
        if before is not None and before.st_nlink > 1:
            _write_into(path, content)  # a new file would have none of its other names
            return
        if before is not None:
            unfinished.chmod(stat.S_IMODE(before.st_mode))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """An empty file in the same folder, for what is to be renamed to `path`."""
    return unused(path.with_name(f".d2lpar-{secrets.token_hex(8)}") for _ in count())


def unused(paths: Iterable[Path]) -> Path:
    """The first that nothing has, of ever more; it is an empty file now, which nobody else gets."""
    for path in paths:
        with suppress(FileExistsError):
            path.open("xb").close()
            return path
    raise FileExistsError("all of the names are taken")


def _write_into(path: Path, content: bytes) -> None:
    old = path.read_bytes()
    try:
        path.write_bytes(content)
    except BaseException:
        path.write_bytes(old)
        raise
