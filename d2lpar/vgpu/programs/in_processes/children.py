"""The processes of a run's ranks, as who starts them sees them: forked from it on Linux, where it
has imported what they need; elsewhere Python starts anew."""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Client, Connection, Listener, Pipe
from pathlib import Path
from types import FrameType
from typing import Any

from ...conductor import starting
from ...conductor.conductor import Conductor
from ...conductor.process import Place
from ...conductor.starting import Told
from ...signals import closed_to_handlers
from ...torch_backend.machine.runtime import Runtime
from ..launch_plan import LaunchPlan, Process
from ..runs import RunOptions
from . import rank_process

LOOKS_S = 0.05  # between two looks at the processes
GRACE_S = 2.0  # for a process to end by itself, when others have failed; then to end when told
FORKS = sys.platform == "linux"  # macOS has a fork that its libraries do not endure
SPAWNED = f"{__package__}.spawned"


@dataclass(frozen=True)
class Run:
    """What processes are started for: the program, how it is run, on what, and where they meet."""

    launch: LaunchPlan
    options: RunOptions
    rt: Runtime
    folder: str

    def place(self, process: Process, processes: Sequence[Process]) -> Place:
        """That of one of them."""
        return Place(
            process.number,
            name_of(process, len(processes)),
            [each.own_first for each in processes],
            process.devices,
            process.variables,
            process.arguments,
            self.told(process),
        )

    def told(self, process: Process) -> Told:
        """What the processes are told that it starts."""
        return Told(
            max(1, self.launch.gpus),
            f"{self.folder}/machine",
            list(process.devices),
            self.folder,
            starting.door_of(self.folder),
            self.options.timeline is not None or self.options.share,
            self.options.shapes_only,
            self.options.hazards,
        )


def name_of(process: Process, ranks: int) -> str:
    """What the program's user calls it."""
    return "main" if ranks == 1 else f"rank {process.number}"


class _Forked:
    """A process that was forked, with what there is of a `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, or less than zero, the number of the signal that has ended it."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Children:
    """The processes of one attempt. Those that were started end when the block does.

    Raises OSError where the system starts no more, RuntimeError for one that does not come.
    """

    def __init__(self, run: Run, processes: Sequence[Process]) -> None:
        self._run, self._processes = run, processes
        self._children: list[_Forked | subprocess.Popen] = []
        self._connections: list[Connection] = []
        self._told: set[tuple[int, int]] = set()
        self.interrupts = 0
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        Path(run.folder, "machine").write_bytes(pickle.dumps(run.rt.machine))
        try:
            if FORKS:
                for process in processes:
                    self._fork(process)
            else:
                self._spawn()
        except BaseException:
            self._tell(KILL)
            raise

    def _fork(self, process: Process) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for other in self._connections:
                other.close()
            place = self._run.place(process, self._processes)
            rank_process.begin(place, theirs, self._run.launch, self._run.options)
        theirs.close()
        self._children.append(_Forked(pid))
        self._connections.append(ours)

    def _spawn(self) -> None:
        """Start Python for each, and let it call here."""
        key = secrets.token_bytes(32)
        with Listener(backlog=len(self._processes), authkey=key) as listener:
            words = [sys.executable, "-m", SPAWNED, str(listener.address)]
            self._children += [
                subprocess.Popen(
                    [*words, str(i)],
                    env={**os.environ, starting.KEY: key.hex()},
                    start_new_session=os.name != "nt",
                )
                for i in range(len(self._processes))
            ]
            came: dict[int, Connection] = {}
            ends = partial(self._call_for_one_that_ends, listener.address, key, came)
            threading.Thread(target=ends, daemon=True).start()
            while len(came) < len(self._processes):
                connection = listener.accept()
                number = connection.recv()
                if number is None:
                    raise RuntimeError("the process of a rank has ended before its program began")
                came[number] = connection
        for i, process in enumerate(self._processes):
            place = self._run.place(process, self._processes)
            came[i].send((place, self._run.launch, self._run.options))
            self._connections.append(came[i])

    def _call_for_one_that_ends(self, address: Any, key: bytes, came: dict) -> None:
        """Wake who waits for calls, if a process that has not called does so no more."""
        while len(came) < len(self._processes):
            if any(child.poll() is not None for child in self._children):
                with Client(address, authkey=key) as connection:
                    connection.send(None)
                return
            time.sleep(LOOKS_S)

    @property
    def seats(self) -> list[tuple[int, Connection]]:
        """Their ids, and what they talk by."""
        pids = [child.pid for child in self._children]
        return list(zip(pids, self._connections, strict=True))

    def wait(self, conductor: Conductor) -> None:
        """Wait until all have ended; those that others have failed are ended soon."""
        failed_s = None
        while not conductor.wait(LOOKS_S):
            self._statuses()
            if self.interrupts > 1:
                conductor.fail()
                self._tell(KILL)
            if conductor.has_failed:
                failed_s = failed_s or time.monotonic()
                late_s = time.monotonic() - failed_s
                if late_s > 2 * GRACE_S:
                    self._tell(KILL)
                elif late_s > GRACE_S:
                    self._tell(signal.SIGTERM)
        end_s = time.monotonic() + GRACE_S
        while None in self._statuses():
            if time.monotonic() > end_s:
                self._tell(KILL)
            time.sleep(LOOKS_S / 10)

    def end_what_they_have_started(self) -> None:
        """End processes that a program has started which has not ended well."""
        for child in self._children:
            with suppress(ProcessLookupError, PermissionError, AttributeError):
                os.killpg(child.pid, KILL)

    @property
    def died(self) -> list[tuple[int, int]]:
        """The ranks that have ended badly, and their exit statuses: not those that were told to
        end."""
        return [
            (rank, status)
            for rank, status in enumerate(self._statuses())
            if status and (rank, -status) not in self._told
        ]

    def _statuses(self) -> list[int | None]:
        return [child.poll() for child in self._children]

    def _tell(self, number: int) -> None:
        living = [rank for rank, child in enumerate(self._children) if child.poll() is None]
        self._told |= {(rank, number) for rank in living}
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for child in self._children:
            if child.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    _signal(child.pid, number)

    @contextmanager
    def passing_signals_on(self) -> Iterator[None]:
        """In the block, signals that this process gets are those of all."""

        @closed_to_handlers
        def heard(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT:
                self.interrupts += 1
                self._tell(number)
            else:  # who ends by it has not been told to by this process
                self._pass_on(number)

        before = {}
        with suppress(ValueError):  # in another thread than the main one
            for number in PASSED_ON:
                before[number] = signal.signal(number, heard)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _signal(pid: int, number: int) -> None:
    """Give a process a signal; a terminal gives an interrupt to what it has started, too."""
    if number in OF_ALL and hasattr(os, "killpg"):
        os.killpg(pid, number)
    else:
        os.kill(pid, number)


KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends processes by either
OF_ALL = (signal.SIGINT, KILL)
PASSED_ON = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
