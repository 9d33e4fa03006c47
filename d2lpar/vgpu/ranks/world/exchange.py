"""A rank's call that others take part in, as the clock and the others know it: no tensor of the
program's is here.

Where GPUs' tensors go through the hosts' memory, as over gloo, what a rank gives is copied there,
into page-locked memory, and what it takes is copied back, both on a stream beside the program's; in
between the hosts exchange, in no time. So ranks may share a GPU, and share its link then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

from ...sim.clock import Clock, HostThread
from ...sim.event_queue import QueuedWork
from ..calls.collective_calls import CollectiveCall
from ..calls.flight_recorder import Flight
from . import watchdog
from .rank_scheduler import Words
from .rendezvous import PendingCollective, Rendezvous

StreamKey = tuple[int, int]


class World(Protocol):
    """What ends with a call that takes too long."""

    def call_before(self, number: int, flight: Flight) -> Flight | None:
        """What a rank has called before one of its calls."""

    def end_by_watchdog(self, group: Rendezvous, pending: PendingCollective, member: int) -> None:
        """Let all ranks end."""


class Caller(Protocol):
    """A rank, as far as its calls need one."""

    number: int
    host_thread: HostThread
    watchdog: watchdog.Watchdog

    @property
    def world(self) -> World:
        """All ranks."""

    @property
    def clock(self) -> Clock:
        """What has its time."""

    def wait(
        self, ready: Callable[[], bool], text: Words, *, polite: bool, timeout: timedelta | None
    ) -> str:
        """Let others run until `ready()`; who waits where, if the timeout was over before."""

    def ends_s(self, work: QueuedWork) -> float:
        """When work on the clock is over."""


class Exchange:
    """One call of a rank, the `member`-th of the group.

    `by_host` are the bytes that it gives and takes through the host's memory; None: it does not.
    """

    def __init__(
        self,
        rank: Caller,
        group: Rendezvous,
        pending: PendingCollective,
        member: int,
        call: CollectiveCall,
        flight: Flight,
        by_host: tuple[int, int] | None,
    ) -> None:
        self._rank, self._group, self._pending, self._member = rank, group, pending, member
        self._call, self._name, self._nbytes = str(call), call.name, call.nbytes
        self._is_read = call.is_read
        self._flight, self._by_host = flight, by_host
        self._arrived: QueuedWork | None = None  # the copy of what it takes to its device
        self._waits_since_s = 0.0

    # --- on the clock -----------------------------------------------------------------------

    def queue(self, host_thread: HostThread, stream: StreamKey | None) -> None:
        """Put it on the clock: on a stream of the rank's device, or (None) its host alone."""
        clock, (given, taken) = self._rank.clock, self._by_host or (0, 0)
        if stream is not None and given:
            clock.copy(host_thread, stream, None, given, self._name)
        more = {"nbytes": self._nbytes, **self._span()}
        self._pending.queue(
            self._flight, self._member, host_thread, clock, stream, self._name, more
        )
        if stream is not None and taken:
            self._arrived = clock.copy(host_thread, None, stream, taken, self._name)

    def _span(self) -> dict[str, object]:
        """What is recorded of it."""
        pending, ranks = self._pending, self._group.ranks
        if not pending.is_send:
            return {"group": tuple(ranks)}
        more: dict[str, object] = {
            "kind": "copy",
            "group": tuple(ranks[i] for i in pending.members),
        }
        if self._name == "send":
            more["target"] = lambda: pending.devices.get(pending.members[1])
        return more

    def watch(self) -> None:
        """Let the watchdogs of ranks look that wait for this one, and its own look from now on."""
        flight, pending = self._flight, self._pending
        member = watchdog.overdue(pending, flight.created_s)
        if member is not None:
            self._rank.world.end_by_watchdog(self._group, pending, member)
        if flight.is_watched:
            self._rank.watchdog.watch(self._group, pending, self._member)

    def delay(self, host_thread: HostThread, stream: StreamKey) -> None:
        """Let later work of a stream come after it."""
        work = self._arrived or self._pending.work_of(self._member)
        assert work is not None, "who is there has put it on the clock"
        self._rank.clock.stream_waits(host_thread, stream, work)

    def block(self, host_thread: HostThread, name: str) -> None:
        """Let the host wait until it is over."""
        self._rank.clock.wait_for(host_thread, self._pending.work_of(self._member), name)

    def is_done(self, host_thread: HostThread) -> bool:
        """Whether it is over by now, as the host sees it."""
        work = self._pending.work_of(self._member) if self.is_over() else None
        return work is not None and self._rank.clock.is_done(host_thread, work)

    def is_known_done(self, host_thread: HostThread) -> bool:
        """The same of what all have come to, by what is queued already."""
        work = self._pending.work if self.is_complete() else None
        return work is not None and self._rank.clock.is_known_done(host_thread, work)

    # --- among the others -------------------------------------------------------------------

    def is_over(self) -> bool:
        """Whether what it takes is there, and nobody is to be waited for."""
        return self._pending.is_over(self._member)

    def is_complete(self) -> bool:
        """Whether all have come to it, and have what they take."""
        return self._pending.is_complete

    def come(self, timeout: timedelta | None = None) -> str:
        """Let others run until it `is_over`; who waits where, if the timeout was over before."""
        self._waits_since_s = self._rank.host_thread.now_s
        return self._rank.wait(self.is_over, self.text, polite=False, timeout=timeout)

    def let_others_go_on(self, text: str) -> None:
        """Let others run, unless it `is_over`."""
        if not self.is_over():
            self._rank.wait(lambda: True, text, polite=True, timeout=None)

    def check_in_time(self, timeout: timedelta | None) -> None:
        """Raise if it ends later than who waits for it does: this rank, since it `come`s, or
        others, which do not wait any more then. Of who has a watchdog, that looks."""
        flight, pending, world = self._flight, self._pending, self._rank.world
        limit_s = math.inf if flight.is_watched else flight.limit_s
        if timeout:
            since_s = flight.created_s if flight.is_nccl else self._waits_since_s
            limit_s = min(limit_s, since_s + timeout.total_seconds())
        work = pending.work_of(self._member)
        if limit_s == math.inf or work is None:
            return
        end_s = self._rank.ends_s(work)
        story = self._group, pending, self._member, world.call_before
        if end_s > limit_s:
            self._rank.host_thread.now_s = max(self._rank.host_thread.now_s, limit_s)
            raise watchdog.timed_out(*story, limit_s, "recv" if self._is_read else "send")
        if end_s > pending.limit_s and not flight.is_watched:
            why = "the error of who has not waited"
            self._rank.wait(lambda: True, why, polite=True, timeout=None)
            raise watchdog.closed(*story)

    def late(self) -> list[int]:
        """The ranks that have not come, or came too late."""
        pending = self._pending
        members = pending.missing or sorted(watchdog.late(pending, self._flight.limit_s))
        return [self._group.ranks[member] for member in members]

    def text(self) -> str:
        """What it is, and who has yet to come to it, or to what is before it."""
        group, pending = self._group, self._pending
        behind = [m for m in pending.members if group.behind(pending, m) is not None]
        missing = ", ".join(str(group.ranks[m]) for m in pending.missing or behind)
        return f"{self._call} of {group} for rank {missing}"

    def timed_out(self, timeout: timedelta | None, report: str) -> dist.DistBackendError:
        """The error of a rank that has not waited longer."""
        return dist.DistBackendError(
            f"rank {self._rank.number} caught collective operation timeout: {self.text()} "
            f"did not end in {timeout}: {report}"
        )
