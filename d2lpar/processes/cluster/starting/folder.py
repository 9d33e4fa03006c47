"""The private folder of a cluster, and the lock on it that ends with the notebook.

The notebook holds a lock on a file of the folder. However the notebook ends, the operating system
releases the lock, and the processes of the cluster, which wait for it, end, too (`lifeline`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from .lifeline import LOCK, PIDS

PREFIX = "d2lpar-cluster-"
_YOUNG_S = 60


class Folder:
    """A folder that only this user can enter, removed by `remove` or by the last process."""

    def __init__(self) -> None:
        remove_abandoned()
        # The number of this process is in the name: see remove_abandoned.
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")).resolve()
        (self.path / PIDS).mkdir()
        # A POSIX lock, which no forked child inherits. Closing the file anywhere in this process
        # would release it, so nothing else here may open it.
        self._lock = (self.path / LOCK).open("w")
        fcntl.lockf(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder and release the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned() -> None:
    """Remove what is left where a notebook and all its ranks were killed in the same moment."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        mine = path.name.startswith(f"{PREFIX}{os.getpid()}-")
        if not mine and _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        status = path.stat()
        if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
            return False
        with (path / LOCK).open("r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # locked, or just being removed
        return False
