"""Processes that a program starts itself: each has a seat as soon as it comes.

At first such a process is alone: what it does is put on the clock when it comes, and turns are no
matter of it. Processes that make a group of all by `init_process_group` have a world of their own
from then on, in which turns pass as among any ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from typing import Any

from ..races.call_sites import CallSite
from ..ranks.stores.virtual_stores import OpenStores
from ..ranks.world.participants import Participant, Participants
from ..ranks.world.rank import here
from ..ranks.world.rank_scheduler import Ended, RankScheduler, Words
from ..sim.clock import HostThread
from ..torch_backend.machine.runtime import Runtime
from .seat import Seat, Watches

LOOKS_S = 0.02


class FreeScheduler(RankScheduler):
    """That of a process that is alone: it goes on when what it waits for is there."""

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__(1, lock, lambda rank: None, lambda rank: None)
        self.holder = 0
        self._changed = threading.Condition(lock)
        self._signals: list[Callable[[], object]] = []

    def begin(self, rank: int) -> None:
        """Go on at once."""

    def wait(
        self,
        rank: int,
        ready: Callable[[], bool],
        text: Words,
        *,
        polite: bool = False,
        expires_s: float | None = None,
        place: CallSite | None = None,
    ) -> str:
        """Wait until `ready()`: another process sees to it."""
        with self._changed:
            self._signals.clear()
            while not ready():
                if self.ended:
                    raise Ended
                signals, self._signals = self._signals, []
                for meet in signals:
                    meet()
                self._changed.wait(LOOKS_S)
        return ""

    def signal(self, rank: int, meet: Callable[[], object]) -> bool:
        """Let who waits call `meet` soon."""
        self._signals.append(meet)
        return True

    def finish(self, rank: int) -> None:
        """Nobody has waited."""


class _Meeting:
    """Processes that come to form a world."""

    def __init__(self, rt: Runtime, size: int) -> None:
        self.members: dict[int, Participant] = {}
        lock = rt.host_threads.lock
        scheduler = RankScheduler(size, lock, lambda rank: None, lambda rank: None)
        self.world = Participants(rt, size, scheduler)
        self.is_complete = False


class Newcomers:
    """The processes of a run that the program has started; they call at `address`.

    `watches` is told what they do, as of ranks whose numbers go on after the `first` ones.
    """

    def __init__(self, rt: Runtime, folder: str, first: int, watches: Watches) -> None:
        self._rt, self._watches = rt, watches
        self._listener = Listener(f"{folder}/door", family="AF_UNIX")
        self.address: Any = self._listener.address
        self._come = first
        self._stores = OpenStores()
        self._meetings: dict[str, list[_Meeting]] = {}
        self._changed = threading.Condition(rt.host_threads.lock)
        self._times: dict[int, float] = {}  # of processes that have started others, by their ids
        self._ended: dict[int, float] = {}  # when those have ended that a process has started
        self.seats: list[Seat] = []
        self._is_open = True
        threading.Thread(target=self._let_in, name="door", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_open = False
        self._listener.close()

    def _let_in(self) -> None:
        while self._is_open:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._sit, args=(connection,), daemon=True)
            thread.start()

    def _sit(self, connection: Connection) -> None:
        try:
            pid, parent, name = connection.recv()
        except (EOFError, OSError):
            return
        with self._changed:
            number, self._come = self._come, self._come + 1
            world = Participants(self._rt, 1, FreeScheduler(self._rt.host_threads.lock))
            world.stores = self._stores
            host_thread = HostThread(name, self._times.get(parent, 0.0), used=set())
            rank = Participant(world, 0, 0, host_thread)
            world.ranks = [rank]
        here.rank = rank
        seat = Seat(rank, connection, self._watches, self, pid=pid, number=number)
        self.seats.append(seat)
        seat.serve()
        self.seats.remove(seat)
        with self._changed:
            self._ended[parent] = max(self._ended.get(parent, 0.0), host_thread.now_s)

    # --- what seats ask ----------------------------------------------------------------------

    def starts(self, pid: int, host_thread: HostThread) -> None:
        """A process is about to start another, at its present time."""
        with self._changed:
            self._times[pid] = host_thread.now_s

    def catch_up(self, pid: int, host_thread: HostThread) -> None:
        """A process has waited for those that it has started."""
        with self._changed:
            host_thread.now_s = max(host_thread.now_s, self._ended.get(pid, 0.0))

    def join(self, rank: Participant, key: str, number: int, size: int) -> Participant:
        """Take part in the world of `size` ranks that meet by that key, as that number. Returns
        the rank there, when all have come."""
        with self._changed:
            meetings = self._meetings.setdefault(key, [])
            if not meetings or number in meetings[-1].members:
                meetings.append(_Meeting(self._rt, size))
            meeting = meetings[-1]
            joined = Participant(meeting.world, number, number, rank.host_thread)
            meeting.members[number] = joined
            if len(meeting.members) == size:
                meeting.world.ranks = [meeting.members[i] for i in range(size)]
                meeting.is_complete = True
                self._changed.notify_all()
            while not meeting.is_complete:
                if rank.world.scheduler.ended:
                    raise Ended
                self._changed.wait(LOOKS_S)
        if number == 0:
            meeting.world.scheduler.start()
        meeting.world.scheduler.begin(number)
        return joined
