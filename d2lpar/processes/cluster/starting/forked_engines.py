"""Engines of this machine, forked from a process that has imported torch.

That process, the fork server, is started with the first cluster and serves all that follow: a
restart then takes a second. Where forking is not safe, engines are started as ipyparallel does.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from ipyparallel.cluster import launcher as launchers

from . import fork_server, lifeline

_CLOSE_S = 2
_FORK_S = 20  # a fork takes milliseconds
_POLL_S = 0.02
# Differ from cluster to cluster, and from test to test; nothing that is imported reads them.
_OF_ONE_CLUSTER = ("IPP_", "PYTEST_CURRENT_TEST")


class ForkServer:
    """The notebook's end of a fork server, which has `environment`."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._owner = os.getpid()
        self._ready, self._asking = threading.Event(), threading.Lock()
        self._news = threading.Condition()
        self._forked: list[int] = []
        self._codes: dict[int, int] = {}
        self._is_open, self.is_unsafe = True, False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", fork_server.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True, name="d2lpar fork server").start()
        atexit.register(self.close)

    @property
    def is_open(self) -> bool:
        """Whether it can be asked: it has not ended, and this process has started it."""
        return self._is_open and os.getpid() == self._owner

    def is_ready(self) -> bool:
        """Whether it has imported what engines need."""
        return self._ready.is_set()

    def fork(self, request: fork_server.Request) -> int | None:
        """The number of a new process that is the engine; None if the server does not answer."""
        with self._asking, self._news:
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:
                return None
            if not self._news.wait_for(lambda: self._forked or not self._is_open, _FORK_S):
                self._process.kill()
            return self._forked.pop() if self._forked else None

    def exit_code(self, pid: int, timeout_s: float | None) -> int | None:
        """The exit code of an engine; None if the server ended first, or the time is over."""
        with self._news:
            self._news.wait_for(lambda: pid in self._codes or not self._is_open, timeout_s)
            return self._codes.get(pid)

    def close(self) -> None:
        """Let it end. Engines that it has forked end with their cluster."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_CLOSE_S)
        except (OSError, subprocess.TimeoutExpired):  # it still imports
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        """Note what it says, in a thread of its own, until it ends."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._note(*line.split())
        with self._news:
            self._is_open = False
            self._news.notify_all()

    def _note(self, what: bytes, *numbers: bytes) -> None:
        with self._news:
            if what == b"ready":
                self._ready.set()
            elif what == b"unsafe":
                self.is_unsafe = True
            elif what == b"forked":
                self._forked.append(int(numbers[0]))
            elif what == b"ended":
                self._codes[int(numbers[0])] = int(numbers[1])
            self._news.notify_all()


# One a process: that it outlives a cluster, and serves the next one, is what it is for.
_server: ForkServer | None = None


def warm_up(environment: dict[str, str]) -> ForkServer | None:
    """The fork server for engines with this environment, started if need be.

    None where a fork is not safe: on macOS, whose own libraries do not survive one, and where an
    imported library has started threads.
    """
    global _server
    if sys.platform != "linux":
        return None
    wanted = _of_every_cluster({**os.environ, **environment})
    if _server is None or _server.environment != wanted or not _server.is_open:
        if _server is not None:
            _server.close()
            if _server.is_unsafe and _server.environment == wanted:
                return None
        _server = ForkServer(wanted)
    return _server


def wait_until_ready(server: ForkServer, left_s: Callable[[], float]) -> None:
    """Wait until it can fork, or has ended. Raises TimeoutError when no time is left."""
    while server.is_open and not server.is_ready():
        if not left_s():
            raise TimeoutError
        time.sleep(_POLL_S)


def _of_every_cluster(environment: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if not k.startswith(_OF_ONE_CLUSTER)}


class _ForkedProcess(psutil.Process):
    """An engine whose parent is the fork server, which knows its exit code."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        super().__init__(pid)
        self._server = server

    def wait(self, timeout: float | None = None) -> int | None:
        code = self._server.exit_code(self.pid, timeout)
        if code is None and self._server.is_open:
            raise psutil.TimeoutExpired(timeout, pid=self.pid)
        return super().wait(timeout) if code is None else code


class ForkedEngineLauncher(launchers.LocalEngineLauncher):
    """Starts an engine of this machine: by a fork if its environment is that of the fork server."""

    def start(self) -> None:
        """Start it; its output goes to a file, as that of ipyparallel's own launcher does."""
        environment = {**os.environ, **self.get_env()}
        server = _server
        if server is not None and server.environment == _of_every_cluster(environment):
            pid = server.fork(self._request(environment)) if server.is_ready() else None
            if pid is not None:
                self.pid, self.process = pid, _ForkedProcess(pid, server)
                self.notify_start(pid)
                self._start_waiting()
                return
        super().start()

    def _request(self, environment: dict[str, str]) -> fork_server.Request:
        after_module = self.args.index(lifeline.__name__) + 1
        return {
            "arguments": self.args[after_module:],
            "environment": environment,
            "folder": str(Path(self.work_dir).resolve()),
            "log": self.output_file,
        }


class ForkedEngineSetLauncher(launchers.LocalEngineSetLauncher):
    """The engines of a cluster on this machine."""

    launcher_class = ForkedEngineLauncher
