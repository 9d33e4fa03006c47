"""A process that has imported torch and forks the engines of a notebook's clusters, one by one.

Run as `-m d2lpar.processes.cluster.starting.fork_server`. Importing torch takes seconds, forking
milliseconds; and what is imported is in memory once, not once a rank. It has one thread, and does
nothing but import: no device and no process group is touched before the fork. Each line of its
standard input is a request (see `Request`), each line of its output says what became of one:

    ready            what engines need is imported
    unsafe           a library has started threads, which would not survive a fork: it ends
    forked PID       the request's engine runs
    ended PID CODE   an engine has ended, by a signal where the code is negative

It ends with the notebook, and when nothing has run for ten minutes.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from typing import TypedDict

from . import lifeline

IDLE_S = 600
_LOOK_S = 1  # how often it looks whether the notebook is still there
_INPUT, _OUTPUT = 0, 1


class Request(TypedDict):
    """An engine: arguments of `lifeline`, environment, working directory, file for its output."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    log: str


def main() -> None:
    """Import, and fork an engine for each request until the notebook has gone."""
    notebook = os.getppid()
    _import_what_engines_need()
    if not _is_alone():
        _tell("unsafe")
        return
    gc.collect()
    gc.freeze()  # else an engine's collector would write to, and so copy, all that it shares
    _tell("ready")
    _serve(notebook)
    os._exit(0)  # libraries in C++ would report at the end what they find still there


def _import_what_engines_need() -> None:
    import ipyparallel.engine.app  # noqa: F401
    import torch.distributed  # noqa: F401

    from . import worker  # noqa: F401


def _is_alone() -> bool:
    """Whether this process has one thread when it forks.

    The threads of numpy's linear algebra end by themselves before a fork: so one is tried first.
    """
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1


def _tell(line: str) -> None:
    os.write(_OUTPUT, f"{line}\n".encode())


def _serve(notebook: int) -> None:
    """Answer requests, and say which engines have ended."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    engines: set[int] = set()
    idle_s, begun = 0, b""
    while os.getppid() == notebook and idle_s < IDLE_S:
        ready, _, _ = select.select([_INPUT, wake], [], [], _LOOK_S)
        idle_s = 0 if ready or engines else idle_s + _LOOK_S
        if wake in ready:
            os.read(wake, 4096)
            _tell_of_ended(engines)
        if _INPUT in ready:
            more = os.read(_INPUT, 65536)
            if not more:
                return
            *lines, begun = (begun + more).split(b"\n")
            for line in lines:
                engines.add(_forked(json.loads(line), (wake, woken)))


def _tell_of_ended(engines: set[int]) -> None:
    while engines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        engines.discard(pid)
        _tell(f"ended {pid} {os.waitstatus_to_exitcode(status)}")


def _forked(request: Request, pipe: tuple[int, int]) -> int:
    """Fork the engine of a request; returns its process's number, in this process."""
    pid = os.fork()
    if pid:
        _tell(f"forked {pid}")
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in pipe:
            os.close(end)
        _be_the_engine(request)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _be_the_engine(request: Request) -> None:
    """In the forked process: be what would have been started with this request."""
    os.setsid()  # a Ctrl-C in the notebook's terminal is not for it
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    os.close(log)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    _draw_other_numbers()
    sys.argv = [lifeline.__file__, *request["arguments"]]
    lifeline.main()


def _draw_other_numbers() -> None:
    """As in a process of its own: Python's `random` does that by itself, numpy does not."""
    import numpy as np

    np.random.seed()  # noqa: NPY002 - the generator that programs share without making one


if __name__ == "__main__":
    main()
