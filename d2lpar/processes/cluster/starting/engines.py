"""The controller and the engines of a cluster: ipyparallel's, started quietly, ended by their ids.

The only place that knows ipyparallel. Its coroutines run in an event loop of their own, in a
thread, so that the same code serves notebooks, scripts and tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ipyparallel
import psutil
from ipyparallel.cluster import launcher as launchers
from traitlets.config import Config

from ....machines.measuring import system
from .. import messages
from ..progress import Progress
from . import forked_engines, lifeline, process_tree, profiles, worker
from .folder import Folder

ROOT = Path(__file__).resolve().parents[4]
LOG_LINES = 15
HEARTBEAT_MS = 200
SILENT_S = 30  # without a heartbeat for so long, the controller gives an engine up
STOPPED_S = 10  # and the notebook a controller that was stopped
# Lines of a log that say nothing of a failure: all but errors, and two that every start writes.
_HARMLESS = re.compile(
    r"\d{4}-\d\d-\d\d (?!.*\] (ERROR|CRITICAL) \|)|.*Monitor message without topic|<frozen runpy>"
)
_POLL_S = 0.02
_CANCEL_S = 5
_LAUNCHER_S = 3  # on a machine that is very busy
# A socket has at most 103 bytes of path on macOS (Linux: 107), of which multiprocessing's own, in
# which DataLoader's workers send tensors, take 32: in a longer TMPDIR a rank would wait for ever.
_SOCKET_FOLDER, _SHORT_TMP = 103 - 32, "/tmp"

T = TypeVar("T")


class StartError(RuntimeError):
    """Ranks that did not come up."""


class Engines:
    """`n` engines and what connects them to this process; a rank is its place in `order`.

    They have `timeout_s` seconds to come up. Raises ValueError where neither `n` nor the profile
    says how many there are, and StartError if they do not come up.
    """

    def __init__(
        self,
        n: int | None,
        *,
        profile: Path | None,
        environment: dict[str, str],
        timeout_s: float,
        progress: Progress,
    ) -> None:
        self.folder = Folder()
        self._timeout_s, self.deadline_s = timeout_s, time.monotonic() + timeout_s
        self._stopped_s: float | None = None  # since when the controller was seen stopped
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: ipyparallel.Client = None  # until the controller is there
        self._idents: list[bytes] = []
        self._ids: list[int] = []
        self._launchers: list = []
        self._local: dict[int, psutil.Process] = {}  # rank -> its process, where it runs here
        self._fork_server = None if profile else forked_engines.warm_up(environment)
        self._cluster = self._configured(n, profile, environment, timeout_s)
        self.n = self._cluster.n
        if self.n is None:
            self.end()
            raise ValueError(messages.ERROR_NO_N)
        try:
            self._start(progress)
        except BaseException:
            self.end()
            raise

    # ---- starting

    def _configured(
        self, n: int | None, profile: Path | None, environment: dict[str, str], timeout_s: float
    ) -> ipyparallel.Cluster:
        theirs = profiles.load(profile) if profile else Config()
        if profile:
            profiles.copy_others(profile, self.folder.path)
        config = Config()
        config.Cluster.delay = 0
        config.LocalEngineSetLauncher.delay = 0
        config.BatchSystemLauncher.batch_file_name = str(self.folder.path / "batch_job")
        config.EngineLauncher.engine_cmd = [
            _python(theirs),
            "-P",
            "-m",
            lifeline.__name__,
            "engine",
        ]
        config.EngineLauncher.engine_args = [f"--IPEngine.timeout={timeout_s}"]
        if profile is None:
            config.Cluster.engine_launcher_class = forked_engines.ForkedEngineSetLauncher
            config.Cluster.controller_ip = config.Cluster.controller_location = "127.0.0.1"
            # Engines of this machine are watched by their processes, and read the connection file.
            config.Cluster.send_engines_connection_env = False
            config.EngineLauncher.engine_args += [
                "--IPEngine.enable_nanny=False",
                f"--IPEngine.wait_for_url_file={timeout_s}",
            ]
        config.merge(theirs)
        for section in {"BaseLauncher", *(name for name in theirs if name.endswith("Launcher"))}:
            set_there = theirs[section].get("environment", {}) if section in theirs else {}
            config[section].environment = {**environment, **set_there}
        config.LocalControllerLauncher.controller_cmd = [
            *(sys.executable, "-P", lifeline.__file__, "controller"),
            "--IPController.enable_curve=True",  # nobody else reads what ranks print
            "--usethreads",  # one process instead of six
            "--nodb",  # nobody asks for a result again: by default it keeps all, up to a gigabyte
            # An engine counts as there after its first heartbeat: do not wait seconds for it.
            f"--HeartMonitor.period={HEARTBEAT_MS}",
            f"--HeartMonitor.max_heartmonitor_misses={SILENT_S * 1000 // HEARTBEAT_MS}",
        ]
        return ipyparallel.Cluster(
            **({} if n is None else {"n": n}),
            config=config,
            profile_dir=str(self.folder.path),
            cluster_id="",
            load_profile=False,
            shutdown_atexit=False,  # it would print
            log=_silent_logger(),
        )

    def _start(self, progress: Progress) -> None:
        try:
            self._start_processes(progress)
            progress.group(self.n)
            self._order()
        except TimeoutError:
            raise StartError(self._why_not(None)) from None

    def _start_processes(self, progress: Progress) -> None:
        progress.controller(self.n)
        self._run(self._cluster.start_controller(), self._left_s())
        self._keep_launchers()
        if self._fork_server is not None:
            progress.engines(0, self.n)
            forked_engines.wait_until_ready(self._fork_server, self._left_s)
        # An engine reads the file as soon as there is one, be it written or not: this waits.
        info = self._run(self._connection_info(), self._left_s())
        self._run(self._start_engines(), self._left_s())
        progress.engines(0, self.n)
        self._client = ipyparallel.Client(
            info["client"], profile_dir=str(self.folder.path), timeout=self._left_s()
        )
        while len(self._client.ids) < self.n:
            ended = next((one for one in self._launchers if one.state == "after"), None)
            if ended is not None or not self._left_s():
                raise StartError(self._why_not(ended))
            progress.engines(len(self._client.ids), self.n)
            time.sleep(_POLL_S)

    def _left_s(self) -> float:
        return max(0, self.deadline_s - time.monotonic())

    def started(self) -> None:
        """The ranks have found one another: what they do from now on may take its time."""
        self.deadline_s = float("inf")

    async def _start_engines(self) -> None:
        try:
            await self._cluster.start_engines()
        finally:
            self._keep_launchers()

    def _keep_launchers(self) -> None:
        """Note who launched what, as ipyparallel forgets an engine that has ended.

        There is one for each process, or for a batch job or mpiexec one for all.
        """
        found = [self._cluster.controller]
        for engine_set in list(self._cluster.engines.values()):
            found += list(getattr(engine_set, "launchers", {}).values()) or [engine_set]
        self._launchers += [one for one in found if one not in [None, *self._launchers]]

    async def _connection_info(self) -> dict:
        try:
            return await self._cluster.controller.get_connection_info(self._timeout_s)
        except RuntimeError:  # it ended
            raise StartError(self._why_not(self._cluster.controller)) from None

    def _why_not(self, ended: launchers.BaseLauncher | None) -> str:
        came = len(self._client.ids) if self._client is not None else 0
        if ended is not None:
            how = process_tree.describe_exit((ended.stop_data or {}).get("exit_code"))
            why = messages.BEFORE_ENDING.format(how=how)
        else:
            why = self._too_late()
        return messages.ERROR_START.format(came=came, n=self.n, why=why, log=self._log(ended))

    def _too_late(self) -> str:
        return messages.TOO_LATE.format(
            seconds=self._timeout_s, more=2 * self._timeout_s, cores=system.cores()
        )

    def apart(self) -> StartError:
        """The error that the ranks came up, but did not find one another in time."""
        return StartError(messages.ERROR_APART.format(n=self.n, why=self._too_late()))

    def _log(self, first: launchers.BaseLauncher | None) -> str:
        """What a process wrote last that matters, one that ended before one that did not."""
        for one in ([first] if first is not None else []) + self._launchers:
            with contextlib.suppress(Exception):
                lines = one.get_output().splitlines()
                tail = [line for line in lines if not _HARMLESS.match(line)][-LOG_LINES:]
                if tail:
                    return messages.LOG.format(name=one.identifier, tail="\n".join(tail))
        return messages.NO_LOG

    def _order(self) -> None:
        """Number the ranks: the hosts as their first engine came, on each the engines in turn."""
        numbers = sorted(self._client.ids)[: self.n]
        asked = {number: self._client[number].apply_async(worker.place) for number in numbers}
        self.flush()
        by_id = {number: reply.get(self._left_s()) for number, reply in asked.items()}
        hosts = list(dict.fromkeys(place.host for place in by_id.values()))
        self._ids = sorted(by_id, key=lambda number: (hosts.index(by_id[number].host), number))
        self.places = [by_id[number] for number in self._ids]
        self._idents = [asked[number].metadata["engine_uuid"].encode() for number in self._ids]
        here = socket.gethostname()
        for rank, place in enumerate(self.places):
            if place.host == here:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._local[rank] = psutil.Process(place.pid)

    def _run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of a coroutine of the cluster's loop; too late, or interrupted, it ends."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    # ---- working

    def send(
        self,
        rank: int,
        request: tuple,
        *,
        on_message: Callable[[dict], None],
        on_reply: Callable[[object], None],
        on_idle: Callable[[], None],
    ) -> None:
        """Let a rank `perform` a request; the callables are called in ipyparallel's thread.

        `on_message` gets each message of Jupyter's protocol that the rank sends meanwhile,
        `on_reply` a `Reply` or the exception that came instead of one; `on_idle` is called when
        there will be no more messages.
        """

        def pass_on(message: dict) -> None:
            kept = self._client.metadata[message["parent_header"]["msg_id"]]
            # ipyparallel would append to it, again and again: minutes for many pieces of output.
            kept["stdout"] = kept["stderr"] = ""
            on_message(message)

        def prepare(future: ipyparallel.client.futures.MessageFuture) -> None:
            future.iopub_callbacks.append(pass_on)
            future.add_done_callback(lambda done: on_reply(done.result()))
            future.output.add_done_callback(lambda _: on_idle())

        self._client.send_apply_request(
            self._client._mux_socket,  # noqa: SLF001 - a view has no hook for messages
            worker.perform,
            args=request,
            ident=self._idents[rank],
            metadata={"label": None},
            message_future_hook=prepare,
        )

    def flush(self) -> None:
        """Let ipyparallel look for replies: to be called when requests have been sent.

        It sends past its event loop. A reply that comes in between two requests is then not
        announced, nor any that follows it (zmq's file descriptor is edge-triggered). ipyparallel
        has no public name for this.
        """
        client = self._client
        client._io_loop.add_callback(client._mux_stream.flush)  # noqa: SLF001

    def ended(self) -> dict[int, str]:
        """The ranks that are gone, and what became of them as far as that is known."""
        heard_of = set(self._client.ids)
        gone = {}
        for rank, number in enumerate(self._ids):
            process = self._local.get(rank)
            if process is not None and not process_tree.is_running(process):
                gone[rank] = messages.DIED.format(
                    how=process_tree.describe_exit(self._exit_code(rank))
                )
            elif number not in heard_of:  # its nanny, or its heart, told the controller
                gone[rank] = _given_up(process)
        return gone

    def _exit_code(self, rank: int) -> int | None:
        """The exit code of a rank that this process has launched itself."""
        pid = self._local[rank].pid
        one = next((one for one in self._launchers if getattr(one, "pid", None) == pid), None)
        if one is None:
            return None
        _wait_until(lambda: one.state == "after", _LAUNCHER_S)
        return (one.stop_data or {}).get("exit_code")

    def controller_ended(self) -> str | None:
        """How the controller ended, if it did; one that stays stopped counts as ended."""
        controller = self._cluster.controller
        if controller is not None and controller.state == "after":
            return process_tree.describe_exit((controller.stop_data or {}).get("exit_code"))
        if not process_tree.is_stopped(getattr(controller, "process", None)):
            self._stopped_s = None
        elif self._stopped_s is None:
            self._stopped_s = time.monotonic()
        elif time.monotonic() - self._stopped_s > STOPPED_S:
            return messages.STOPPED_TOO_LONG.format(seconds=STOPPED_S)
        return None

    def interrupt(self, ranks: Sequence[int]) -> None:
        """Raise KeyboardInterrupt on ranks, as far as they run Python."""
        remote = [self._ids[rank] for rank in ranks if rank not in self._local]
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                if rank in self._local:
                    self._local[rank].send_signal(signal.SIGINT)
        if remote:
            self._client.send_signal(signal.SIGINT, targets=remote, block=False)

    # ---- ending

    def end(self) -> None:
        """End all processes at once, and remove all files. Safe to call again."""
        if self._loop.is_closed():
            return
        self._keep_launchers()  # also of a start that was interrupted
        self._cancel_jobs()
        here = [one for one in self._launchers if getattr(one, "process", None)]
        process_tree.end([*(one.process for one in here), *self._local.values()])
        # Until the launchers' threads have seen it, too.
        _wait_until(lambda: all(one.state != "running" for one in here), _LAUNCHER_S)
        if self._client is not None:
            self._client.close(linger=0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.folder.remove()

    def _cancel_jobs(self) -> None:
        """Take back what a batch system still has, without waiting long for it.

        Engines on other hosts end by themselves when the controller does.
        """
        for one in self._launchers:
            if isinstance(one, launchers.BatchSystemLauncher) and one.state == "running":
                with contextlib.suppress(Exception):
                    self._run(asyncio.wait_for(asyncio.to_thread(one.stop), _CANCEL_S))


def _given_up(process: psutil.Process | None) -> str:
    if process is None:
        return messages.GONE_OR_SILENT.format(seconds=SILENT_S)
    return messages.SILENT.format(seconds=SILENT_S, pid=process.pid)


def _wait_until(holds: Callable[[], bool], seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _python(theirs: Config) -> str:
    """The Python that runs engines: this one, unless the profile names another for other hosts."""
    for section in ("SSHEngineSetLauncher", "SSHEngineLauncher", "SSHLauncher"):
        if section in theirs and "remote_python" in theirs[section]:
            return theirs[section].remote_python
    return sys.executable


def _silent_logger() -> logging.Logger:
    """A logger of its own: a notebook stores what is printed."""
    logger = logging.Logger(__name__, level=logging.CRITICAL + 1)
    logger.addHandler(logging.NullHandler())
    return logger


def environment(threads: int | None) -> dict[str, str]:
    """What engines and controller find in their environment, above that of this process."""
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = {
        lifeline.HOST: socket.gethostname(),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    if len(os.fsencode(tempfile.gettempdir())) > _SOCKET_FOLDER:
        found["TMPDIR"] = _SHORT_TMP
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    return found
