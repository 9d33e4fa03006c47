"""How processes come that a rank's program starts: by its environment they find the run.

They are real ones, whatever starts them: multiprocessing, subprocess, torchrun. What is seen to
here is that times go on from one to the other: a process begins at the time of who starts it,
which goes on, when it has waited, no earlier than it ends. While it waits for others, or for what
they send, those go on whose turn would come after its own.
"""

from __future__ import annotations

import json
import multiprocessing.connection
import multiprocessing.process
import os
import subprocess
import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from ..patching import Patches
from .wire import SEAT, Wire

VARIABLE = "D2LPAR_RUN"
AT_START = str(Path(__file__).parent / "at_start")


def tell(told: dict[str, Any]) -> None:
    """Let processes that this one starts find the run."""
    os.environ[VARIABLE] = json.dumps(told)
    path = os.environ.get("PYTHONPATH")
    if path is None or AT_START not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([AT_START, *([path] if path else [])])


def told() -> dict[str, Any]:
    """What the process that has started this one was told."""
    found: dict[str, Any] = json.loads(os.environ[VARIABLE])
    return found


def install(patches: Patches, wire: Callable[[], Wire | None]) -> None:
    """Let times go on from process to process; `wire()` is that of the running one."""

    def before(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(theirs)
        def start(*args: Any, **kwargs: Any) -> Any:
            if (found := wire()) is not None:
                found.ask(SEAT, "starts_another", ())
            return theirs(*args, **kwargs)

        return start

    def resting(theirs: Callable[..., Any], *, for_children: bool) -> Callable[..., Any]:
        @wraps(theirs)
        def wait(*args: Any, **kwargs: Any) -> Any:
            found = wire()
            if found is None or threading.current_thread() is not threading.main_thread():
                return theirs(*args, **kwargs)
            found.post(SEAT, "rest", ())
            found.flush()
            result = theirs(*args, **kwargs)
            if for_children:
                found.post(SEAT, "has_waited_for_others", ())
            return result

        return wait

    after = partial(resting, for_children=True)
    receiving = partial(resting, for_children=False)
    process = multiprocessing.process.BaseProcess
    for owner, name, around in (
        (process, "start", before),
        (subprocess.Popen, "__init__", before),
        (process, "join", after),
        (subprocess.Popen, "wait", after),
        (multiprocessing.connection, "wait", after),
        (multiprocessing.connection.Connection, "recv", receiving),
        (multiprocessing.connection.Connection, "recv_bytes", receiving),
    ):
        patches.set(owner, name, around(getattr(owner, name)))
