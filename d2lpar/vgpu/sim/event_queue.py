"""When queued work begins: a discrete-event simulation that looks ahead only as far as asked.

Work is submitted with the time at which the host had queued it, the earlier work that it follows,
and the resources that it occupies; it is pending until somebody needs a time. Then, again and
again, the pending work that can begin first begins. Where several can begin at the same moment, the
higher priority (lower number) wins, then what was ready first, then what was queued first, then
what was submitted first. So waiting work is served in turn, and what has begun is not interrupted.

**Side by side.** Work that does not need all of a resource holds it for the part of its time that
corresponds to what it needs; then others may begin although it has not ended. So two kernels that
each fill half of a device take no longer than one of them, and a stream, whose next kernel waits
for the end of the last, never overtakes itself.

**How far it is safe to look.** Work that begins before the earliest time at which anything more
can be queued is beyond dispute, so `begin_until` with that time never changes what comes out. A
host that waits for some work queues nothing before its end, so `begin` for that work is as safe:
it settles what begins earlier, and nothing else. With one host thread, times therefore do not
depend on when they are asked for. They do where the future is settled while more may be queued
before it: when a recording ends (`begin_all`), and when one of several host threads waits or asks
while another is behind. Work submitted late, for a time that is settled already, takes the gaps
that are left.

**Work of several hosts.** A collective is announced by the first host that queues it, and cannot
begin before all others have joined it. Until then nothing that follows it has a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from heapq import heappop, heappush, heapreplace

from ...timeline import Span, Timeline
from ..signals import closed_to_handlers
from .busy_intervals import Resource, earliest
from .taken_shares import Engine, TakenShares

# The timelines that record some work, and its span but for the start and the end.
Note = tuple[tuple[Timeline, ...], Callable[[float, float], Span]]
Recorded = Mapping[tuple[int, int], int]  # by device and stream
NOTHING: Recorded = {}


class QueuedWork:
    """A kernel, a transfer, or a mark without resources, which takes no time.

    It takes `seconds`, of which it has its resources to itself for the first `engaged_s` (None: for
    all). `start_s` and `end_s` are None while it is pending. `notes` are the spans to record when
    they are known. `blockers` counts what it still waits for, `followers` is what waits for it.
    `recorded` says which recorded work it is, or as a mark comes after: the number of the last one
    of each stream. `joined` says that several hosts have a part in it.
    """

    __slots__ = (
        "blockers",
        "end_s",
        "engaged_s",
        "followers",
        "joined",
        "notes",
        "number",
        "priority",
        "queued_s",
        "ready_s",
        "recorded",
        "resources",
        "seconds",
        "start_s",
        "takes",
    )

    def __init__(
        self,
        queued_s: float,
        resources: tuple[Resource, ...] = (),
        seconds: float = 0.0,
        priority: int = 0,
        engaged_s: float | None = None,
    ) -> None:
        self.queued_s = self.ready_s = queued_s
        self.resources = resources
        self.seconds = seconds
        self.engaged_s = seconds if engaged_s is None else engaged_s
        self.priority = priority
        self.notes: tuple[Note, ...] = ()
        self.takes: tuple[tuple[TakenShares, float], ...] = ()  # of devices' multiprocessors
        self.recorded: Recorded = NOTHING
        self.joined = False
        self.number = 0
        self.start_s: float | None = None
        self.end_s: float | None = None
        self.blockers = 0
        self.followers: list[QueuedWork] = []

    def lengthen(self, seconds: float) -> None:
        """Let it last, and have its resources to itself, so much longer."""
        self.seconds += seconds
        self.engaged_s += seconds


class EventQueue:
    """Pending work, and its beginning; `begun(work, start_s, end_s)` is called for all that has
    notes.

    `to_join` counts the hosts that have yet to join announced work.
    """

    def __init__(self, begun: Callable[[QueuedWork, float, float], None]) -> None:
        self.to_join = 0
        self._begun = begun
        self._submitted = 0
        # Work that waits for nothing but resources, by the earliest start that it may have.
        self._ready: list[tuple[float, int, float, float, int, QueuedWork]] = []

    @closed_to_handlers
    def submit(self, work: QueuedWork, *earlier: QueuedWork | None) -> None:
        """Let `work` begin when all of `earlier` have ended (None: nothing)."""
        self._submitted = work.number = self._submitted + 1
        self._follow(work, earlier)
        if not work.blockers:
            self._release(work)

    @closed_to_handlers
    def announce(self, work: QueuedWork, hosts: int) -> None:
        """Submit work that begins when each of `hosts` hosts has joined it."""
        self._submitted = work.number = self._submitted + 1
        work.blockers = hosts
        work.joined = True
        self.to_join += hosts

    @closed_to_handlers
    def join(self, work: QueuedWork, queued_s: float, *earlier: QueuedWork | None) -> None:
        """One more host has queued announced work, at `queued_s`, and behind `earlier`."""
        work.queued_s = max(work.queued_s, queued_s)
        work.ready_s = max(work.ready_s, queued_s)
        self._follow(work, earlier)
        self.to_join -= 1
        work.blockers -= 1
        if not work.blockers:
            self._release(work)

    @closed_to_handlers
    def abandon(self, work: QueuedWork) -> None:
        """Let pending work be over, whatever it waits for."""
        if work.end_s is None:
            work.seconds, work.notes, work.takes = 0.0, (), ()
            self._settle(work, work.ready_s)

    @closed_to_handlers
    def begin(self, work: QueuedWork) -> None:
        """Settle when `work` begins and ends, and what begins before it."""
        while work.end_s is None and self._begin_first(math.inf):
            pass

    @closed_to_handlers
    def begin_until(self, when_s: float) -> None:
        """Settle all work that begins before `when_s`."""
        while self._begin_first(when_s):
            pass

    def begin_all(self) -> None:
        """Settle all work that has been submitted."""
        self.begin_until(math.inf)

    def _begin_first(self, limit_s: float) -> bool:
        """Settle the work that can begin first, if that is before `limit_s`."""
        ready = self._ready
        while ready and ready[0][0] < limit_s:
            known_s, priority, ready_s, queued_s, number, work = ready[0]
            start_s = earliest(work.resources, known_s, work.engaged_s)
            if start_s > known_s:  # others have begun since
                heapreplace(ready, (start_s, priority, ready_s, queued_s, number, work))
                continue
            engine = work.resources[0]
            if isinstance(engine, Engine) and engine.shares.matter:
                needed_s = engine.shares.needed_s(start_s, work.engaged_s)
                later_s = engine.earliest(start_s, needed_s)
                if later_s > start_s:  # the gap is too short for it
                    heapreplace(ready, (later_s, priority, ready_s, queued_s, number, work))
                    continue
                engine.shares.begun(start_s)
                work.lengthen(needed_s - work.engaged_s)
            heappop(ready)
            for resource in work.resources:
                resource.occupy(start_s, start_s + work.engaged_s)
            self._settle(work, start_s)
            for shares, share in work.takes:
                shares.take(start_s, start_s + work.seconds, share)
            return True
        return False

    @staticmethod
    def _follow(work: QueuedWork, earlier: tuple[QueuedWork | None, ...]) -> None:
        for before in earlier:
            if before is None:
                continue
            if before.end_s is None:
                work.blockers += 1
                before.followers.append(work)
            elif before.end_s > work.ready_s:
                work.ready_s = before.end_s

    def _release(self, work: QueuedWork) -> None:
        """Let work compete for its resources; a mark needs none."""
        if work.resources:
            entry = (work.ready_s, work.priority, work.ready_s, work.queued_s, work.number, work)
            heappush(self._ready, entry)
        else:
            self._settle(work, work.ready_s)

    def _settle(self, work: QueuedWork, start_s: float) -> None:
        settled = [(work, start_s)]  # a mark may settle the next: a loop, as there may be many
        while settled:
            work, start_s = settled.pop()
            work.start_s = start_s
            work.end_s = end_s = start_s + work.seconds
            if work.notes:
                self._begun(work, start_s, end_s)
            if not work.followers:
                continue
            followers, work.followers = work.followers, []
            for follower in followers:
                follower.blockers -= 1
                follower.ready_s = max(follower.ready_s, end_s)
                if follower.blockers:
                    continue
                if follower.resources:
                    self._release(follower)
                else:
                    settled.append((follower, follower.ready_s))
