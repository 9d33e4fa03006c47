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

import psutil

_ASK_S = 5.0  # for a process that hangs to say where it is
_ANSWER_S = 2.0  # for its main thread to come by
_AT_WORK = ".at_work"
_LOOK_S = 0.5  # at what the process has used
_IDLE = 0.01  # of the time: who waits in a loop uses that little, who is kept waiting more
_GIB = 2**30


class RealTime:
    """The machine's own: inside `emulate_cuda`, that of a user's module is simulated, and this
    module counts as one."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


@dataclass(frozen=True)
class Limits:
    """Of one process: seconds, and GiB of memory beyond what it starts with.

    The seconds are those of a processor, as others may keep the machine busy; and a process that
    does nothing for as long hangs, too.
    """

    seconds: float
    gib: float


@dataclass
class End:
    """How a process ended: what its function returned (None: nothing came), or why not.

    `status` says how it ended, and how much of a processor's time (`used_s`) it took; `output` is
    the end of what it wrote. `at_work_s` is what it says that it was at work for, of a process that
    took too long; 0 if it did not answer.
    """

    result: Any
    timed_out: bool
    status: str
    output: str
    used_s: float
    at_work_s: float


def run_limited(
    function: Callable[[], Any], limits: Limits, at_work_s: Callable[[], float] = lambda: 0.0
) -> End:
    """Call `function` in a fork of this process, and give what it returns, as JSON can have it.

    If it takes too long, `at_work_s` is called there, to tell a hang from much to do. All that it
    has started ends with it. Memory beyond the limit raises MemoryError there, or what the library
    raises that asked for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _live(function, limits, write, output, at_work_s)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            received, timed_out = _receive(pipe.fileno(), pid, limits.seconds)
        if timed_out:
            _ask_where(pid, output)
        status, used_s = _end(pid, patience_s=0.0 if timed_out else 5.0)
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        said = Path(f"{output}{_AT_WORK}")
        work_s = float(said.read_text() or 0) if said.exists() else 0.0
    lines = received.splitlines()  # a fork of the process may have gone on, too, and sent its own
    result = json.loads(lines[0]) if lines else None
    return End(result, timed_out, status, text[-8000:], used_s, work_s)


def _live(
    function: Callable[[], Any],
    limits: Limits,
    write: int,
    output: Path,
    at_work_s: Callable[[], float],
) -> None:
    """The life of the process; it does not return."""
    code = 1
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2)
        said = Path(f"{output}{_AT_WORK}")
        signal.signal(signal.SIGUSR2, lambda *_: said.write_text(str(at_work_s())))
        _limit_memory(limits.gib)
        _work_in(output.parent)
        result = json.dumps(function()).encode() + b"\n"
        while result:
            result = result[os.write(write, result) :]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _work_in(folder: Path) -> None:
    """Leave nothing elsewhere: tests of torch make temporary files that they never remove."""
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def _limit_memory(gib: float) -> None:
    """Of address space: what is there already, and so much more."""
    with contextlib.suppress(OSError):  # only Linux says how much is there
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + int(gib * _GIB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _receive(pipe: int, pid: int, seconds: float) -> tuple[bytes, bool]:
    """What the process has sent until it closed its end; and whether it took too long."""
    parts, watch = [], _Watch(pid, seconds)
    while True:
        if not select.select([pipe], [], [], _LOOK_S)[0]:
            if watch.is_over():  # and something that it has started holds the other end open
                return b"".join(parts), False
            if watch.hangs():
                return b"", True
            continue
        part = os.read(pipe, 65536)
        if not part:
            return b"".join(parts), False
        parts.append(part)


class _Watch:
    """Tells a process that has too much to do, or waits for ever, from one that is kept waiting."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._process, self._seconds = psutil.Process(pid), seconds
        self._before = (RealTime.monotonic(), 0.0)

    def is_over(self) -> bool:
        """Whether it has ended."""
        try:
            return self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def hangs(self) -> bool:
        """Whether it has had its seconds, or has done nothing for so many."""
        with contextlib.suppress(psutil.NoSuchProcess):
            times, now_s = self._process.cpu_times(), RealTime.monotonic()
            used_s = times.user + times.system
            if used_s > self._seconds:
                return True
            since_s, then_s = self._before
            if used_s - then_s > _IDLE * self._seconds:
                self._before = (now_s, used_s)
            else:
                return now_s - since_s > self._seconds
        return False


def _ask_where(pid: int, output: Path) -> None:
    """Let it say how long it was at work, and `faulthandler` write where all threads are."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
    RealTime.sleep(_ANSWER_S)
    before, until_s = output.stat().st_size, RealTime.monotonic() + _ASK_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
    while output.stat().st_size == before and RealTime.monotonic() < until_s:
        RealTime.sleep(0.05)
    RealTime.sleep(0.1)  # for the rest of it


def _end(pid: int, patience_s: float) -> tuple[str, float]:
    """End the process and all that it has started; how it ended, in words, and the seconds of a
    processor that it took."""
    until_s = RealTime.monotonic() + patience_s
    status = None
    while status is None and RealTime.monotonic() < until_s:
        found, code, used = os.wait4(pid, os.WNOHANG)
        status = code if found else None
        RealTime.sleep(0.002 if status is None else 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        _, status, used = os.wait4(pid, 0)
    how = f"exit status {os.waitstatus_to_exitcode(status)}"
    if os.WIFSIGNALED(status):
        how = signal.Signals(os.WTERMSIG(status)).name
    used_s = used.ru_utime + used.ru_stime
    return f"{how} after {used_s:.0f} s of a processor", used_s
