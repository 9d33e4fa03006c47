"""Processes that a program starts itself: each has a seat as soon as it comes.

At first such a process is alone: what it does is put on the clock when it comes, and turns are no
matter of it. Processes that make a group of all by `init_process_group` have a world of their own
from then on, in which turns pass as among any ranks.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from ...timeline.host_processes import rank_name
from ..races.call_sites import CallSite
from ..ranks.stores.virtual_stores import OpenStores
from ..ranks.world.participants import Participants
from ..ranks.world.rank import here
from ..ranks.world.rank_scheduler import Ended, RankScheduler, Words
from ..sim.clock import HostThread
from ..torch_backend.machine.runtime import Runtime
from .seat import RankProcess, Seat, Watches
from .starting import door_of

LOOKS_S = 0.02


class FreeScheduler(RankScheduler):
    """That of a process that is alone: it goes on when what it waits for is there."""

    def __init__(self, lock: threading.RLock, host_thread: HostThread) -> None:
        super().__init__(1, lock, lambda rank: None, lambda rank: None)
        self._host_thread = host_thread
        self.holder = 0
        self._changed = threading.Condition(lock)

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
        called: Callable[[], bool] = lambda: False,
    ) -> str:
        """Wait until `ready()`: another process sees to it. What expires does so by the clock on
        the wall, too: nobody knows which processes are yet to come."""
        with self._changed:
            end_s = time.monotonic()
            end_s += math.inf if expires_s is None else expires_s - self._host_thread.now_s
            while not (ready() or called()):
                if self.ended:
                    raise Ended
                if time.monotonic() > end_s:
                    return f"{text if isinstance(text, str) else text()}: no process sees to it"
                self._changed.wait(LOOKS_S)
        return ""

    def finish(self, rank: int) -> None:
        """Nobody has waited."""


class _Meeting:
    """Processes that come to form a world."""

    def __init__(self, rt: Runtime, size: int) -> None:
        self.members: dict[int, RankProcess] = {}
        lock = rt.host_threads.lock
        scheduler = RankScheduler(size, lock, lambda rank: None, lambda rank: None)
        self.world = Participants(rt, size, scheduler)
        self.is_complete = False
        self.ended = 0


class Newcomers:
    """The processes of a run that the program has started; they call at `address`.

    `watches` is told what they do, as of ranks whose numbers go on after the `first` ones.
    """

    def __init__(self, rt: Runtime, folder: str, first: int, watches: Watches) -> None:
        self._rt, self._watches = rt, watches
        self._listener = Listener(door_of(folder))
        self.address: Any = self._listener.address
        self._come = first
        self.stores = OpenStores()
        self._meetings: dict[str, list[_Meeting]] = {}
        self._changed = threading.Condition(rt.host_threads.lock)
        self._ended: dict[int, float] = {}  # when those have ended that a process has started
        # What processes hold of devices that several of them have, in bytes.
        self._held: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._is_open = True
        self._door = threading.Thread(target=self._let_in, name="door", daemon=True)
        self._door.start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_open = False
        with suppress(OSError):  # wakes who waits at the door
            Client(self.address).close()
        self._door.join()
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
            pid, parent, start_s = connection.recv()
        except (EOFError, OSError):
            return
        with self._changed:
            number, self._come = self._come, self._come + 1
            name = f"process {number}"
            connection.send(name)
            host_thread = HostThread(name, start_s, used=set())
            lock = self._rt.host_threads.lock
            world = Participants(self._rt, 1, FreeScheduler(lock, host_thread))
            world.opened = self.stores
            rank = RankProcess(world, 0, 0, host_thread)
            world.ranks = [rank]
        here.rank = rank
        seat = Seat(rank, connection, self._watches, self, pid=pid, number=number)
        seat.serve()
        with self._changed:
            self._leave(seat.world)
            self.stores.end(number)
            for held in self._held.values():
                held.pop(number, None)
            self._ended[parent] = max(self._ended.get(parent, 0.0), host_thread.now_s)

    # --- what seats ask ----------------------------------------------------------------------

    def catch_up(self, pid: int, host_thread: HostThread) -> None:
        """A process has waited for those that it has started."""
        with self._changed:
            host_thread.now_s = max(host_thread.now_s, self._ended.get(pid, 0.0))

    def hold(self, number: int, device: int, nbytes: int) -> int:
        """A process is to hold so much of a device; what others do."""
        held = self._held[device]
        held[number] = nbytes
        return sum(held.values()) - nbytes

    def _leave(self, world: Participants) -> None:
        """When all processes of a world have ended, let the clock go on without what they left."""
        for meeting in (m for found in self._meetings.values() for m in found if m.world is world):
            meeting.ended += 1
            if meeting.ended == len(meeting.members):
                world.give_up()

    def join(self, rank: RankProcess, key: str, number: int, size: int) -> RankProcess:
        """Take part in the world of `size` ranks that meet by that key, as that number. Returns
        the rank there, when all have come."""
        with self._changed:
            meetings = self._meetings.setdefault(key, [])
            if not meetings or number in meetings[-1].members:
                meetings.append(_Meeting(self._rt, size))
                meetings[-1].world.opened = self.stores
            meeting = meetings[-1]
            joined = RankProcess(meeting.world, number, number, rank.host_thread)
            joined.opener = rank.opener
            joined.host_thread.name = rank_name(number)
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
