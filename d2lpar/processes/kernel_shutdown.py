"""The end of a notebook's kernel that has started processes: at once, with nothing left behind.

A kernel that is to end sends SIGTERM to its children until none is left. The resource tracker of
multiprocessing ignores it, so Jupyter kills the kernel after five seconds, and the folders that
multiprocessing would have removed at exit stay.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver, resource_tracker, util


def prepare() -> None:
    """In a notebook: let multiprocessing clean up before the kernel waits for its children."""
    if "ipykernel" in sys.modules:
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None:
            shell.observe(_clean_up, "exit_now")  # the same handler counts once


def _clean_up(change: dict) -> None:
    if not change["new"]:
        return
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    _stop_helpers()


def _stop_helpers() -> None:
    """End multiprocessing's own processes; it has no public names for that.

    Each waits until its process has ended; the folder of the first is removed in between.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # noqa: SLF001
    util._run_finalizers()  # type: ignore[attr-defined]  # noqa: SLF001
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # noqa: SLF001
