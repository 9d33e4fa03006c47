"""Ranks in a notebook: processes with torch.distributed that run its functions and cells."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .. import pickling
from . import failures, messages, output, sending
from .engines import Engines, environment
from .progress import Progress
from .remote_call import OnReport, RemoteCall, ended_by
from .wire import Membership, RankProcess
from .worker import threads_each

_STORE = "rendezvous"

_current: Ranks | None = None  # one cluster a process: what `%%px` and a second call mean


def current() -> Ranks | None:
    """The ranks that this process has started last, whether they run or have ended."""
    return _current


class Ranks:
    """`n` ranks, as started by `d2lpar.cluster`: `run` functions on them, or cells by `%%px`.

    A context manager, at whose end they stop. `on_report(rank, values)` is called for what
    `d2lpar.report` sends in calls that bring no callable of their own.
    """

    def __init__(self, n: int | None, *, profile: Path | None, timeout_s: float) -> None:
        self._asked, self._profile, self._timeout_s = n, profile, timeout_s
        self._engines: Engines | None = None
        self._why_ended = messages.STOPPED
        self._busy = threading.Lock()
        self._pid = os.getpid()
        self.on_report: OnReport | None = None
        self.restart()

    # ---- starting and stopping

    def restart(self) -> Ranks:
        """End the ranks, if they still run, and start as many anew: all their variables are lost.

        A cluster that was started in their place is stopped: there is one in a process.
        Raises RuntimeError with the end of a log if they do not come up in time.
        """
        global _current
        self._end(messages.STOPPED)
        if _current not in (None, self):
            _current.stop()
        with Progress() as progress:
            engines = self._engines = Engines(
                self._asked,
                profile=self._profile,
                environment=environment(_threads_here(self._asked, self._profile)),
                timeout_s=self._timeout_s,
                progress=progress,
            )
            self.n = engines.n
            try:
                self._join(engines)
                engines.started()
            except BaseException:
                self._end(messages.STOPPED)
                raise
        _current = self
        atexit.unregister(self.stop)
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """End all processes of the cluster and remove its files; stopping twice does no harm."""
        if os.getpid() == self._pid:  # a forked child must not stop its parent's ranks
            self._end(messages.STOPPED)
            atexit.unregister(self.stop)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def is_like(self, n: int | None, profile: Path | None) -> bool:
        """Whether these are the ranks that `cluster(n, profile=profile)` would start."""
        return (n in (None, self._asked) or n == self.n) and profile == self._profile

    @property
    def is_running(self) -> bool:
        """Whether the ranks can be used."""
        return self._engines is not None and not self._engines.ended()

    def _end(self, why: str) -> None:
        engines, self._engines = self._engines, None
        if engines is not None:
            self._why_ended = why
            try:
                engines.end()
            except KeyboardInterrupt:  # nothing may survive a student's impatience
                engines.end()
                raise

    def _join(self, engines: Engines) -> None:
        """Let the ranks find one another."""
        places = engines.places
        hosts = [place.host for place in places]
        on_one_host = len(set(hosts)) == 1
        on_gpu = _have_gpus(places)
        self.backend = "nccl" if on_gpu else "gloo"
        if on_one_host:
            store = str(engines.folder.path / _STORE)
        else:
            store = self._unpacked(self._perform("open_store", (self.n,), [0]))[0]
        common = {
            "world_size": self.n,
            "backend": "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            "on_gpu": on_gpu,
            "on_one_host": on_one_host,
            "threads": _asked_threads(),
            "store": store,
            "working_dir": str(Path.cwd()),
            "search_path": tuple(path for path in sys.path if path),
        }
        memberships = [
            Membership(
                rank=rank,
                local_rank=hosts[:rank].count(host),
                ranks_on_host=hosts.count(host),
                **common,
            )
            for rank, host in enumerate(hosts)
        ]
        self.threads = self._unpacked(self._perform("join", (memberships,)))

    # ---- working

    def run(
        self,
        function: Callable,
        *args: object,
        on_report: OnReport | None = None,
        **kwargs: object,
    ) -> list:
        """Call `function(*args, **kwargs)` on every rank; returns the results by rank.

        A function of the notebook is sent with all that it refers to there, except that `rank`,
        `world_size`, `local_rank`, `device`, `dist`, `torch` and `par` are the rank's own; names
        that the notebook does not have may be variables of the rank. What it prints appears when
        all are done, by rank. `on_report(rank, values)` is called in this thread, while they
        work, for each `d2lpar.report(**values)`.

        Raises TypeError naming what cannot be sent; RankError with the traceback of the rank
        that failed first. If others are then not done within a second, all ranks have ended.
        """
        payload = sending.packed_call(function, args, kwargs)
        return self._unpacked(self._perform_packed("call", payload, None, on_report))

    def run_cell(
        self,
        source: str,
        *,
        ranks: Sequence[int] | None = None,
        on_report: OnReport | None = None,
    ) -> None:
        """Run the text of a cell on all or some ranks: what `%%px` does.

        Raises ValueError for a rank that there is not.
        """
        if ranks is not None and not (ranks and all(rank in range(self.n) for rank in ranks)):
            raise ValueError(messages.ERROR_RANKS.format(last=self.n - 1, ranks=ranks))
        asked = None if ranks is None else sorted(set(ranks))
        self._perform_packed("cell", pickling.dumps((source,)), asked, on_report)

    def push(self, variables: Mapping[str, object]) -> None:
        """Set variables on every rank."""
        self._perform_packed("push", sending.packed_variables(variables), None, None)

    def __getitem__(self, name: str) -> list:
        """The values of a variable, by rank."""
        if not isinstance(name, str):
            raise ValueError(messages.ERROR_NAME.format(name=name))
        return self._unpacked(self._perform("pull", (name,)))

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        ranks = "rank" if self.n == 1 else "ranks"
        if self._engines is None:
            return messages.LINE_ENDED.format(n=self.n, ranks=ranks, why=self._why_ended)
        threads = "-".join(map(str, sorted({min(self.threads), max(self.threads)})))
        word = "thread" if threads == "1" else "threads"
        return messages.LINE.format(
            n=self.n, ranks=ranks, backend=self.backend, threads=threads, thread_word=word
        )

    def _perform(self, action: str, values: tuple, ranks: Sequence[int] | None = None) -> list:
        return self._perform_packed(action, pickling.dumps(values), ranks, None)

    def _perform_packed(
        self,
        action: str,
        payload: bytes,
        ranks: Sequence[int] | None,
        on_report: OnReport | None,
    ) -> list:
        engines = self._running()
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(messages.ERROR_BUSY)
        try:
            call = RemoteCall(engines, range(self.n) if ranks is None else ranks, action, payload)
            return self._finish(call, on_report or self.on_report)
        finally:
            self._busy.release()

    def _running(self) -> Engines:
        """The engines; RanksEndedError if they have ended, or one has since the last call."""
        engines = self._engines
        if engines is None:
            raise failures.RanksEndedError(messages.ENDED.format(why=self._why_ended))
        for rank, how in engines.ended().items():
            self._end(messages.GONE.format(rank=rank, how=how))
            raise failures.RanksEndedError(messages.ENDED.format(why=self._why_ended))
        return engines

    def _finish(self, call: RemoteCall, on_report: OnReport | None) -> list:
        try:
            usable = call.wait(on_report)
        except BaseException as error:
            self._give_up(call, error)
            raise
        if call.is_late:
            raise call.engines.apart()
        if not usable:
            self._end(ended_by(call))
        output.show(call.outputs.values())
        if call.troubles:
            rank = failures.culprit(call.troubles)
            raise failures.error(rank, call.troubles[rank], after=self._what_now(usable)) from None
        if call.controller:
            raise failures.RanksEndedError(messages.ENDED.format(why=self._why_ended))
        return [call.replies[rank].value for rank in sorted(call.replies)]

    def _what_now(self, usable: bool) -> str:
        if usable:
            return messages.FREE
        return messages.SURVIVORS if self.n > 1 else messages.ALONE

    def _give_up(self, call: RemoteCall, error: BaseException) -> None:
        """The cell was interrupted, or its on_report raised: stop the ranks, or end them."""
        interrupted = isinstance(error, KeyboardInterrupt)
        usable = False
        with contextlib.suppress(KeyboardInterrupt):  # asked twice: at once
            usable = call.interrupt()
        if not usable:
            self._end(messages.INTERRUPTED if interrupted else messages.ABANDONED)
        output.show(call.outputs.values())
        if interrupted and not usable:
            raise KeyboardInterrupt(messages.INTERRUPT) from None
        if not usable:
            error.add_note(messages.INTERRUPT)

    @staticmethod
    def _unpacked(values: list) -> list:
        return [pickle.loads(value) for value in values]


def _have_gpus(places: Sequence[RankProcess]) -> bool:
    """Whether each rank can have a GPU, and the notebook did not ask for virtual ones."""
    hosts = [place.host for place in places]
    return os.environ.get("D2LPAR_DEVICES") != "virtual" and all(
        place.gpus >= hosts.count(place.host) for place in places
    )


def _asked_threads() -> int | None:
    """The threads that the user wants, if OMP_NUM_THREADS says so."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else None


def _threads_here(n: int | None, profile: Path | None) -> int | None:
    """Threads of each rank on this machine; other hosts count their own cores when they join."""
    asked = _asked_threads()
    return asked if n is None or profile is not None else threads_each(asked, n)
