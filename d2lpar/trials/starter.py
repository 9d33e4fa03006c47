"""Starting answers' processes, each apart from all others and ended whole.

    judge ── asks ──> starter ── forks ──> keeper ── forks ──> the answer's process
      └───────────────────── two pipes: questions, answers ──────────┘

The starter has torch loaded, has no judge and no answer in it, and forks a keeper for each answer.
The keeper shuts the process off (`confinement`), watches its time, and ends all that it has
started. Nothing of this runs in the answer's process or can be seen from it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psutil
import torch

from ..vgpu import register_backend
from . import confinement, plain
from .answering import Server
from .confinement import Limits

ROOT = Path(__file__).resolve().parents[2]
# How an answer's process ended; or the name of a signal, or "exit 3".
DONE, LONG, WAITED, STARVED = "done", "long", "waited", "starved"
KILLED, FULL = "killed", "full"
MOST_PATIENCE = 10  # times as long as usual, if others have the processor
LOOK_S, LINGER_S, ENDS_S = 0.05, 10.0, 0.5
OUT_OF_MEMORY = 77  # the exit status of a process that has no memory left to say so
BUSY, IDLE = b"+", b"-"
PRELOADED = (
    *(".gpus", ".hardware", ".gpus_and_links", ".auto_parallelism", ".multi_gpu_from_scratch"),
    *(".multi_gpu_concise", ".distributed_sgd", ".channel_parallelism", ".toys"),
    *(".memory_and_mixes", ".plans", ".ranks", ".small_gpt", ".timelines", "..lesson.collectives"),
    *("..parallelism.pipeline", "..parallelism.planner", "..parallelism.scaling"),
    *("torch._dynamo", "torch.distributed.launcher"),
)
SPAWNED = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from d2lpar.trials.starter import spawned; spawned({seconds!r}, {nbytes!r}, {trial!r})"
)


@dataclass
class Process(ABC):
    """An answer's process, as its judge has it: what to ask goes into `writing`."""

    reading: int
    writing: int
    lacks: list[str] = field(default_factory=list)

    def ask(self, question: object) -> dict:
        """What it says. Raises EndOfMessagesError, NotPlainError, or OSError if it has ended."""
        self.tell(BUSY)
        try:
            plain.write(self.writing, question)
            reply = plain.read(self.reading)
        finally:
            self.tell(IDLE)
        if not isinstance(reply, dict):
            raise plain.NotPlainError(f"{type(reply).__name__} is no answer")
        return reply

    @abstractmethod
    def tell(self, what: bytes) -> None:
        """Say that it has something to do, or nothing: its time is counted meanwhile."""

    @abstractmethod
    def end(self) -> str:
        """End it and all that it has started; how it had ended."""


def _begun(reading: int) -> list[str]:
    """What an answer's process lacks of a boundary. Raises OSError if it has not begun."""
    try:
        said = plain.read(reading)
    except plain.EndOfMessagesError:
        said = {"failed": "it ended at once"}
    if "failed" in said:
        raise OSError(str(said["failed"]))
    return list(said["lacks"])


class Starter(ABC):
    """What starts answers' processes. `trial` is a module that not every answer may know."""

    @abstractmethod
    def start(self, limits: Limits, trial: str = "") -> Process:
        """A new process. Raises OSError if there cannot be one."""


# --- where there is fork --------------------------------------------------------------------------


@dataclass
class _Kept(Process):
    keeper: socket.socket | None = None

    def tell(self, what: bytes) -> None:
        assert self.keeper is not None
        with contextlib.suppress(OSError):
            self.keeper.send(what)

    def end(self) -> str:
        os.close(self.writing)
        os.close(self.reading)
        assert self.keeper is not None
        with self.keeper, contextlib.suppress(OSError, ValueError):
            with contextlib.suppress(OSError):  # it has ended before, and said how
                self.keeper.shutdown(socket.SHUT_WR)
            said = b"".join(iter(functools.partial(self.keeper.recv, 4096), b""))
            found = json.loads(said)
            self.lacks += found["lacks"]
            return str(found["how"])
        return KILLED


class Forks(Starter):
    """A starter that is forked at once: call it before anything is loaded that answers may not
    know."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        tempfile.gettempdir()
        self._way, theirs = socket.socketpair()
        if os.fork() == 0:
            self._way.close()
            confinement.keep([theirs.fileno()])
            _start_what_is_asked(theirs)
        theirs.close()

    def start(self, limits: Limits, trial: str = "") -> Process:
        """A new process, shut off. Raises OSError if there cannot be one."""
        asked_r, asked_w = os.pipe()
        told_r, told_w = os.pipe()
        mine, keepers = socket.socketpair()
        request = json.dumps([limits.seconds, limits.nbytes, trial]).encode()
        socket.send_fds(self._way, [request], [asked_r, told_w, keepers.fileno()])
        os.close(asked_r)
        os.close(told_w)
        keepers.close()
        process = _Kept(told_r, asked_w, keeper=mine)
        try:
            process.lacks = _begun(told_r)
        except BaseException:
            process.end()
            raise
        return process


def _start_what_is_asked(way: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        request, descriptors, _, _ = socket.recv_fds(way, 4096, 3)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                way.close()
                seconds, nbytes, trial = json.loads(request)
                _load(trial)
                asked, told, control = descriptors
                _keep(asked, told, control, Limits(seconds, nbytes))
            os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def _load(trial: str) -> None:
    if trial:
        importlib.import_module(f"{__package__}.{trial}")


def _keep(asked: int, told: int, control: int, limits: Limits) -> NoReturn:
    """In the keeper: start the answer's process, watch it, and end it."""
    os.setsid()  # an interrupt is for who has asked
    judge = socket.socket(fileno=control)
    held = confinement.held_bytes()
    folder = Path(tempfile.mkdtemp(prefix="d2lpar_answer_"))
    try:
        lacks = confinement.separate()
        child = os.fork()
        if child == 0:
            _answer(limits, held, asked, told, folder)
        os.close(asked)
        os.close(told)
        how = _Watch(child, judge, limits).until_it_ends()
        _end_all(child)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    judge.sendall(json.dumps({"how": how, "lacks": lacks}).encode())
    judge.shutdown(socket.SHUT_WR)
    judge.settimeout(LINGER_S)
    with contextlib.suppress(OSError):  # what comes unread to an end takes back what was said
        while judge.recv(64):
            pass
    os._exit(0)


def _answer(limits: Limits, held: int, asked: int, told: int, folder: Path) -> NoReturn:
    try:
        plain.write(told, _shut_off(limits, held, (asked, told), folder))
        Server(asked, told).serve()
    except plain.EndOfMessagesError:
        os._exit(0)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    finally:
        os._exit(1)


def _shut_off(limits: Limits, held: int, ways: tuple[int, int], folder: Path) -> dict[str, object]:
    """What could not be had; or why nothing may run here."""
    try:
        if hasattr(os, "setsid"):
            os.setsid()
        return {"lacks": confinement.shut_off(limits, held, ways, folder)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


class _Watch:
    """Looks at the answer's process until it has ended, is to end, or has taken too long."""

    def __init__(self, child: int, judge: socket.socket, limits: Limits) -> None:
        self._child, self._judge, self._limits = child, judge, limits
        self._since_s: float | None = None  # when it was last given something to do
        self._took_s = self._starved_s = 0.0
        self._starved_before_s = 0.0

    def until_it_ends(self) -> str:
        while True:
            ready, _, _ = select.select([self._judge], [], [], LOOK_S)
            gone = bool(ready) and not self._heard(self._judge.recv(64))
            how = self._how_it_ended(ENDS_S if gone else 0.0)
            if how or gone:
                return how or DONE
            took_s, starved_s = self._so_far()
            if took_s - starved_s > self._limits.patience_s:
                return WAITED
            if took_s > MOST_PATIENCE * self._limits.patience_s:
                return STARVED

    def _how_it_ended(self, patience_s: float) -> str:
        """Empty as long as it goes on. Its pipes are closed a moment before it has ended, so that
        the judge may know of it first: then there is some patience."""
        until_s = time.monotonic() + patience_s
        while True:
            ended, status, used = os.wait4(self._child, os.WNOHANG)
            if ended:
                return _how(status, used.ru_utime + used.ru_stime, self._limits)
            if time.monotonic() >= until_s:
                return ""
            time.sleep(0.005)

    def _heard(self, what: bytes) -> bool:
        for each in what:
            if bytes([each]) == BUSY:
                self._since_s, self._starved_before_s = time.monotonic(), _starved_s(self._child)
            else:
                self._took_s, self._starved_s = self._so_far()
                self._since_s = None
        return bool(what)

    def _so_far(self) -> tuple[float, float]:
        """Seconds that it has had something to do, and how many it was kept from doing it."""
        if self._since_s is None:
            return self._took_s, self._starved_s
        took_s = time.monotonic() - self._since_s
        starved_s = max(0.0, _starved_s(self._child) - self._starved_before_s)
        return self._took_s + took_s, self._starved_s + min(took_s, starved_s)


def _starved_s(process: int) -> float:
    """How long its threads were ready to run, and others had the processor (Linux)."""
    total_ns = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
            total_ns += int(file.read_text().split()[1])
    return total_ns / 1e9


def _how(status: int, used_s: float, limits: Limits) -> str:
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return {0: DONE, OUT_OF_MEMORY: FULL}.get(code, f"exit {code}")
    number = os.WTERMSIG(status)
    if number in (signal.SIGKILL, signal.SIGXCPU):
        return LONG if used_s >= limits.seconds else KILLED
    return signal.Signals(number).name


def _end_all(child: int) -> None:
    """The process, its session, and what has left that: whose parent is the keeper now."""
    until_s = time.monotonic() + 5
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)
    while time.monotonic() < until_s:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.005)


# --- where there is none --------------------------------------------------------------------------


@dataclass
class _Spawned(Process):
    process: subprocess.Popen[bytes] | None = None
    timer: threading.Timer | None = None
    late: bool = False

    def tell(self, what: bytes) -> None:
        """Nothing: the time is that of all it does."""

    def stop(self) -> None:
        """End it for having taken too long."""
        self.late = True
        assert self.process is not None
        self.process.kill()

    def end(self) -> str:
        assert self.process is not None
        assert self.timer is not None
        self.timer.cancel()
        ended = self.process.poll()
        self.process.kill()
        self.process.communicate()
        return STARVED if self.late else DONE if ended in (None, 0) else f"exit {ended}"


class Spawns(Starter):
    """A new interpreter for each answer, which loads torch anew."""

    def start(self, limits: Limits, trial: str = "") -> Process:
        """A new process. Raises OSError if there cannot be one."""
        program = SPAWNED.format(
            root=str(ROOT), seconds=limits.seconds, nbytes=limits.nbytes, trial=trial
        )
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=confinement.environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        started = _Spawned(process.stdout.fileno(), process.stdin.fileno(), process=process)
        try:
            started.lacks = _begun(started.reading)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        started.timer = threading.Timer(limits.patience_s, started.stop)
        started.timer.daemon = True
        started.timer.start()
        return started


def spawned(seconds: float, nbytes: int, trial: str) -> None:
    """In a new interpreter: what asks is at its standard input and output."""
    asked, told = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    if sys.platform == "win32":
        import msvcrt

        for descriptor in (asked, told):
            msvcrt.setmode(descriptor, os.O_BINARY)
    torch.set_num_threads(1)
    load()
    _load(trial)
    limits, held = Limits(seconds, nbytes), confinement.held_bytes()
    folder = Path(tempfile.mkdtemp(prefix="d2lpar_answer_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    plain.write(told, _shut_off(limits, held, (asked, told), folder))
    with contextlib.suppress(plain.EndOfMessagesError):
        Server(asked, told).serve()


def starter() -> Starter:
    """What this system has. Call it before anything is loaded that answers may not know."""
    load()
    return Forks() if hasattr(os, "fork") else Spawns()


def load() -> None:
    """Load what answers need: later it could not be read everywhere."""
    for module in PRELOADED:
        importlib.import_module(module, __package__)
    register_backend()
