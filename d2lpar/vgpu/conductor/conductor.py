"""The process beside the ranks: it has their clock, and a thread for each that does what it asks.

Turns pass as among ranks that are threads, so that times are the same. A rank whose turn has not
come runs on as long as it asks nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection

from ..ranks.launcher import let_others_go_on
from ..ranks.world.participants import Participants
from ..ranks.world.rank import here
from ..ranks.world.rank_scheduler import RankScheduler
from ..sim.clock import HostThread
from ..torch_backend.machine.runtime import Runtime
from .newcomers import Newcomers
from .seat import RankProcess, Seat, Watches


class Conductor:
    """That of ranks with these names, on the clock of `rt`."""

    def __init__(self, rt: Runtime, names: Sequence[str], watches: Watches, folder: str) -> None:
        self._rt, self._watches = rt, watches
        lock = rt.host_threads.lock
        scheduler = RankScheduler(len(names), lock, lambda rank: None, lambda rank: None)
        self.world = Participants(rt, len(names), scheduler)
        now_s = rt.now_s()
        self._ranks = [
            RankProcess(self.world, number, number, HostThread(name, now_s, used=set()))
            for number, name in enumerate(names)
        ]
        self.world.ranks = self._ranks
        self._threads: list[threading.Thread] = []
        self.newcomers = Newcomers(rt, folder, len(names), watches)
        self.world.opened = self.newcomers.stores  # of all processes, whoever has started them

    def serve(self, connections: Sequence[tuple[int, Connection]]) -> None:
        """Begin to do what the processes of the ranks ask for, by their ids."""
        self._rt.clock.others = let_others_go_on
        for rank, (pid, connection) in zip(self._ranks, connections, strict=True):
            seat = Seat(
                rank,
                connection,
                self._watches,
                self.newcomers,
                pid=pid,
                number=rank.number,
                is_first=True,
            )
            thread = threading.Thread(
                target=self._sit, args=(rank, seat), name=f"seat {rank.number}", daemon=True
            )
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()
        self.world.scheduler.start()

    def _sit(self, rank: RankProcess, seat: Seat) -> None:
        here.rank = rank
        try:
            seat.serve()
        except BaseException:  # a fault of ours, for which nobody is to wait
            self.fail()
            raise

    def wait(self, seconds: float) -> bool:
        """Wait so long, at most, for all to end; whether they have."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(seconds)
                break
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def has_failed(self) -> bool:
        """Whether ranks are to end that have not yet."""
        return self.world.scheduler.ended

    def fail(self) -> None:
        """Let all ranks end."""
        self.world.scheduler.end()

    def close(self) -> None:
        """Let the clock go on without those that have not come."""
        self.newcomers.close()
        self._rt.clock.others = None
        self.world.give_up()
        host = self._rt.clock.host
        host.now_s = max([host.now_s, *(rank.host_thread.now_s for rank in self.world.ranks)])
