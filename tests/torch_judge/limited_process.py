"""A function in a forked process, with limits of time and memory."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ASK_S = 2.0  # for a process that hangs to say where it is
_GIB = 2**30


@dataclass(frozen=True)
class Limits:
    """Of one process: seconds, and GiB of memory beyond what it starts with."""

    seconds: float
    gib: float


@dataclass
class End:
    """How a process ended: what its function returned (None: nothing came), or why not.

    `status` says how it ended, `output` is the end of what it wrote.
    """

    result: Any
    timed_out: bool
    status: str
    output: str


def run_limited(function: Callable[[], Any], limits: Limits) -> End:
    """Call `function` in a fork of this process, and give what it returns, as JSON can have it.

    All that it has started ends with it. Memory beyond the limit raises MemoryError there, or what
    the library raises that asked for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _live(function, limits, write, output)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            received, timed_out = _receive(pipe.fileno(), time.monotonic() + limits.seconds)
        if timed_out:
            _ask_where(pid)
        status = _end(pid, patience_s=0.0 if timed_out else 5.0)
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    result = json.loads(received) if received else None
    return End(result, timed_out, status, text[-8000:])


def _live(function: Callable[[], Any], limits: Limits, write: int, output: Path) -> None:
    """The life of the process; it does not return."""
    code = 1
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2)
        _limit_memory(limits.gib)
        os.chdir(output.parent)
        result = json.dumps(function()).encode()
        while result:
            result = result[os.write(write, result) :]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _limit_memory(gib: float) -> None:
    """Of address space: what is there already, and so much more."""
    with contextlib.suppress(OSError):  # only Linux says how much is there
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + int(gib * _GIB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _receive(pipe: int, until_s: float) -> tuple[bytes, bool]:
    """What the process has sent until it closed its end; and whether it took too long."""
    parts = []
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
            return b"", True
        part = os.read(pipe, 65536)
        if not part:
            return b"".join(parts), False
        parts.append(part)


def _ask_where(pid: int) -> None:
    """Let `faulthandler` write where all threads are."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(_ASK_S / 4)


def _end(pid: int, patience_s: float) -> str:
    """End the process and all that it has started; how it ended, in words."""
    until_s = time.monotonic() + patience_s
    status = None
    while status is None and time.monotonic() < until_s:
        found, code = os.waitpid(pid, os.WNOHANG)
        status = code if found else None
        time.sleep(0.002 if status is None else 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.waitstatus_to_exitcode(status)}"
