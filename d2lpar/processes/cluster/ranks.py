"""Ranks in a notebook that are processes with torch.distributed."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import failures, messages, output, started
from .cluster_ranks import ClusterRanks, OnReport
from .progress import Progress
from .remote_call import RemoteCall, ended_by
from .starting import permission
from .starting.engines import Engines, environment
from .starting.worker import threads_each
from .wire import Membership, RankProcess

_STORE = "rendezvous"


class Ranks(ClusterRanks):
    """`n` processes with torch.distributed, here or wherever a profile says."""

    def __init__(self, n: int | None, *, profile: Path | None, timeout_s: float) -> None:
        self._asked, self._profile, self._timeout_s = n, profile, timeout_s
        self._engines: Engines | None = None
        self._why_ended = messages.STOPPED
        self._busy = threading.Lock()
        self._pid = os.getpid()
        self.restart()

    # ---- starting and stopping

    def restart(self) -> Ranks:
        """End the ranks, if they still run, and start as many anew: all their variables are lost.

        A cluster that was started in their place is stopped: there is one in a process.
        Raises RuntimeError with the end of a log if they do not come up in time.
        """
        self._end(messages.STOPPED)
        started.stop_others(self)
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
        started.are(self)
        atexit.unregister(self.stop)
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """End all processes of the cluster and remove its files; stopping twice does no harm."""
        if os.getpid() == self._pid:  # a forked child must not stop its parent's ranks
            self._end(messages.STOPPED)
            atexit.unregister(self.stop)

    def is_like(self, n: int | None, profile: Path | None) -> bool:
        """Whether these are the ranks that `cluster(n, profile=profile)` would start."""
        same = (n in (None, self._asked) or n == self.n) and profile == self._profile
        return same and not (profile is None and permission.is_asked())

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
        common: dict[str, Any] = {
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

    def __repr__(self) -> str:
        ranks = "rank" if self.n == 1 else "ranks"
        if self._engines is None:
            return messages.LINE_ENDED.format(n=self.n, ranks=ranks, why=self._why_ended)
        threads = "-".join(map(str, sorted({min(self.threads), max(self.threads)})))
        word = "thread" if threads == "1" else "threads"
        return messages.LINE.format(
            n=self.n, ranks=ranks, backend=self.backend, threads=threads, thread_word=word
        )

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
