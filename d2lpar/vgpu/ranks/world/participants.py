"""The ranks of a run as the clock and the others know them: whose turn it is, and where they meet.

Nothing here knows whether a rank is a thread of this process or a process of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from ...races.call_sites import CallSite
from ...sim.clock import Clock, HostThread
from ...sim.event_queue import QueuedWork
from ...torch_backend.machine.runtime import Runtime
from ...torch_backend.private.torch_modes import unwatched
from ..calls import flight_recorder
from ..calls.collective_calls import CollectiveCall
from ..calls.flight_recorder import Flight
from ..stores.virtual_stores import OpenStores
from .alike import Alike
from .exchange import Exchange
from .hang_report import explained
from .rank_scheduler import Ended, RankScheduler, Words
from .rendezvous import PendingCollective, Rendezvous
from .watchdog import Watchdog, overdue, watchdog_text

LOOKS_S = 0.02  # between two looks at ranks that wait outside
PATIENCE_S = 2.0  # for a thread of a rank, where the others wait for one another
WORLD = "0"  # the name of the group of all ranks


class Send(NamedTuple):
    """How a send finds its receive: source and target in the group, the communicator, and what of
    the same batch runs beside it."""

    way: tuple[int, int]
    communicator: Hashable
    batch: object = None


class Participants:
    """The ranks of one run, `size` in all, of which `ranks` are simulated.

    Turns go from one to another by the `scheduler`, and they meet in groups.
    """

    ranks: Sequence[Participant]

    def __init__(
        self, rt: Runtime, size: int, scheduler: RankScheduler, alike: Alike | None = None
    ) -> None:
        self.rt, self.size, self.alike = rt, size, alike
        self._rendezvous = {(WORLD, *range(size)): self._meeting(range(size))}
        self.stores = self.opened = OpenStores()  # that all have, and that the program opens
        self.scheduler = scheduler
        scheduler.explain, scheduler.gives_way = self.explain_hang, self._gives_way
        self.outside: set[int] = set()  # ranks that wait for what is no matter of the run
        self.has_threads = False  # a process of a rank, so that it may go on though it waits
        self._stuck_since_s: float | None = None
        self._look = threading.Condition(rt.host_threads.lock)

    def _meeting(self, ranks: Sequence[int]) -> Rendezvous:
        if self.alike is None:
            return Rendezvous(ranks, self.rt.machine)
        self.alike.check(ranks)
        return Rendezvous(ranks, self.alike.machine, self.alike)

    def rendezvous(self, name: str, ranks: Sequence[int]) -> Rendezvous:
        """Where the ranks of the group of that name meet.

        Groups without common members may have one name: they are made at once. Raises RuntimeError
        if another rank has made a group of it with some of the members only.
        """
        key = (name, *ranks)
        if key not in self._rendezvous:
            self._check_alone(name, ranks)
            self._rendezvous[key] = self._meeting(ranks)
            self._rendezvous[key].number = len(self._rendezvous) - 1
        return self._rendezvous[key]

    def _check_alone(self, name: str, ranks: Sequence[int]) -> None:
        for (other, *_), rendezvous in self._rendezvous.items():
            if other == name and not set(ranks).isdisjoint(rendezvous.ranks):
                raise RuntimeError(
                    f"group {name} is of ranks {list(ranks)} here and of {rendezvous.ranks} on "
                    "another rank: all ranks must call new_group in the same order with the same "
                    "ranks"
                )

    def explain_hang(self, returned: Sequence[int]) -> list[str]:
        """Lines about the collectives under way; `returned` are the indices of ranks that have
        ended. Flight recorders are written where programs want them."""
        written = [
            flight_recorder.write(rank.flights, rank.number, rank.host_thread.now_s)
            for rank in self.ranks
        ]
        last = {rank.number: rank.flights.last() for rank in self.ranks}
        lines = explained(
            list(self._rendezvous.values()), last, {self.ranks[i].number for i in returned}
        )
        return lines + [problem for problem in written if problem][:1]

    def end_by_watchdog(self, group: Rendezvous, pending: PendingCollective, member: int) -> None:
        """Let all ranks end, as the watchdog of a member ends its process; the thread of a rank
        does not go on."""
        text = watchdog_text(group, pending, member, self.call_before)
        self.scheduler.fail(dist.DistBackendError(text))
        raise Ended

    def look_at_the_time(self, index: int) -> None:
        """Let the watchdogs of others look for whom a rank is late by now, whenever it comes: it
        may sleep, and see whether something is there, again and again."""
        if self.has_threads:  # each of which has a time of its own
            return
        rank = self.ranks[index]
        for group in list(self._rendezvous.values()):
            for pending in group.open_collectives():
                member = overdue(pending, rank.host_thread.now_s)
                if member is not None and rank.number in [group.ranks[m] for m in pending.missing]:
                    self.end_by_watchdog(group, pending, member)

    def call_before(self, number: int, flight: Flight) -> Flight | None:
        """What a rank has called before one of its calls."""
        return next(r for r in self.ranks if r.number == number).flights.before(flight)

    def _gives_way(self, returned: Sequence[int]) -> bool:
        """Whether somebody may go on after all: by NCCL's buffers, or soon, who waits outside."""
        if self._buffer_sends(returned):
            return True
        if self.outside or self._is_patient():
            self._look.wait(LOOKS_S)
            return True
        return False

    def _is_patient(self) -> bool:
        """Whether a thread that nobody sees may yet go on."""
        if self._stuck_since_s is None:
            self._stuck_since_s = time.monotonic()
        return self.has_threads and time.monotonic() < self._stuck_since_s + PATIENCE_S

    def goes_on(self) -> None:
        """A rank need not wait any more for what it has waited for."""
        self._stuck_since_s = None

    def _buffer_sends(self, returned: Sequence[int]) -> bool:
        """Whether NCCL's buffers let ranks go on, which wait for others to receive."""
        has_left = {self.ranks[i].number for i in returned}.__contains__
        with unwatched(), torch.no_grad():
            return any(r.buffer_sends(has_left) for r in self._rendezvous.values())

    def has_open_exchange(self, device: int) -> bool:
        """Whether a collective or a send of tensors of that device waits for other ranks."""
        return any(
            device in pending.devices.values()
            for rendezvous in self._rendezvous.values()
            for pending in rendezvous.open_collectives()
        )

    def give_up(self) -> None:
        """Let the clock go on after an error, without those that will not come."""
        left = [p for r in self._rendezvous.values() for p in r.unfinished()]
        for pending in left:
            self.rt.host_threads.ask(pending.give_up, self.rt.clock)
        for pending in left:
            if pending.work is not None:
                self.rt.host_threads.ask(self.rt.clock.abandon, pending.work)


class Participant:
    """A rank of a run: `number`, the `index`-th that is simulated, and its host's time."""

    def __init__(
        self, world: Participants, index: int, number: int, host_thread: HostThread
    ) -> None:
        self.world, self.index, self.number, self.host_thread = world, index, number, host_thread
        self.opener = number  # who it is to stores
        # Whether its process, which waits, has something to say.
        self.calls: Callable[[], bool] = lambda: False
        self.place: CallSite | None = None  # where its program waits, if it is another process
        self.flights = flight_recorder.FlightRecorder()
        self.watchdog = Watchdog(world.end_by_watchdog)
        host_thread.waits = self.watchdog.look

    @property
    def clock(self) -> Clock:
        """What has its time."""
        return self.world.rt.clock

    def begin(
        self,
        group: Rendezvous,
        call: CollectiveCall,
        on_device: int | None,
        flight: Flight,
        send: Send | None = None,
        by_host: tuple[int, int] | None = None,
    ) -> Exchange:
        """Take part in the group's next collective, or in a `send`; tensors are `on_device` (None:
        the host), or go through the host: `by_host`. Raises as `Rendezvous` does."""
        flight.created_s = self.host_thread.now_s
        member = group.ranks.index(self.number)
        with unwatched():
            if send is None:
                met = None if by_host is not None else on_device
                pending = group.meet(member, call, met)
            else:
                pending = group.pass_on(
                    member, send.way, send.communicator, call, on_device, send.batch
                )
        return Exchange(self, group, pending, member, call, flight, by_host)

    def wait(
        self,
        ready: Callable[[], bool],
        text: Words,
        *,
        polite: bool = False,
        timeout: timedelta | None = None,
    ) -> str:
        """Let other ranks run until `ready()`. With a timeout it ends when nobody can go on: the
        host has waited so long then, and what is returned says who waits where."""
        expires_s = None
        if timeout:
            expires_s = self.host_thread.now_s + timeout.total_seconds()
        report = self.world.scheduler.wait(
            self.index,
            ready,
            text,
            polite=polite,
            expires_s=expires_s,
            place=self.place,
            called=self.calls,
        )
        if report and expires_s is not None:
            self.host_thread.now_s = max(self.host_thread.now_s, expires_s)
        return report

    def ends_s(self, work: QueuedWork) -> float:
        """When work on the clock is over."""
        rt = self.world.rt
        return rt.host_threads.ask(lambda _: rt.clock.end_s(work))
