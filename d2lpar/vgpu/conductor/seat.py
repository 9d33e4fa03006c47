"""What the conductor does for one rank's process: it carries out what that sends, in its turn."""

from __future__ import annotations

import marshal
import pickle
import select
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from ..races.call_sites import CallSite
from ..ranks.calls.collective_calls import CollectiveCall
from ..ranks.calls.flight_recorder import Flight, dumped
from ..ranks.stores.virtual_stores import RankStore, open_file_store, open_tcp_store
from ..ranks.world.exchange import Exchange
from ..ranks.world.participants import Participant, Participants, Send
from ..ranks.world.rank import here
from ..ranks.world.rank_scheduler import Ended, Words
from ..ranks.world.rendezvous import Rendezvous
from ..sim.clock import HostThread, StreamKey
from ..sim.event_queue import QueuedWork
from ..torch_backend.private.torch_modes import unwatched
from .idleness import Idleness
from .tape import Tape
from .values import FarBlocks, Parcel
from .wire import (
    ASK,
    CLOCK,
    DROP,
    HOST_THREAD,
    MAKE,
    NUDGE,
    POST,
    READ,
    SEAT,
    WRITE,
    Place,
    unpacked,
)

LOOKS_S = 0.1  # at a process that says nothing
ONCE = ("open_tcp_store", "open_file_store", "join_world")  # not to be begun twice


class BrokenOff(Exception):  # noqa: N818 - no error of the rank's own
    """The process says something while it waits, by another thread or in the handler of a signal:
    that comes first, and it asks again."""


class RankProcess(Participant):
    """A rank whose process may say something while it waits."""

    def wait(
        self,
        ready: Callable[[], bool],
        text: Words,
        *,
        polite: bool = False,
        timeout: timedelta | None = None,
    ) -> str:
        """See `Participant.wait`; raises BrokenOff."""
        report = super().wait(ready, text, polite=polite, timeout=timeout)
        if not report and not ready():
            raise BrokenOff
        self.world.goes_on()
        return report


class _Failed:
    """In the place of what could not be made: whatever is asked of it fails as well."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


@dataclass(kw_only=True)
class FarCall(CollectiveCall):
    """A call of another process: what must be equal on all ranks, and its words, came with it."""

    text: str
    of_kind: tuple
    reads_others: bool

    @property
    def kind(self) -> tuple:
        """What must be equal on all ranks."""
        return self.of_kind

    @property
    def is_read(self) -> bool:
        """Whether it takes something, or has no tensors."""
        return self.reads_others

    def __str__(self) -> str:
        return self.text


class Watches:
    """Who is told what ranks do; this one does nothing with it."""

    def said(self, rank: int, stream: int, text: str) -> None:
        """A rank prints on stdout (0) or stderr (1)."""

    def stepped(self, rank: int, optimizer: int, work: QueuedWork) -> None:
        """An optimizer of a rank has updated its parameters when `work` is done."""

    def waited(
        self, rank: int, number: int, call: str, place: CallSite, seconds: float, device: str
    ) -> None:
        """The host has waited for a device, in its `number`-th call that does so."""

    def ended(self, rank: int, report: dict[str, Any] | None) -> bool:
        """A process has ended, and has said that; None: without a word. Whether all are to end."""
        return False


class Meets(Protocol):
    """Where processes meet that a program has started itself."""

    def catch_up(self, pid: int, host_thread: HostThread) -> None:
        """A process has waited for those that it has started."""

    def hold(self, number: int, device: int, nbytes: int) -> int:
        """A process is to hold so much of a device; what others do."""

    def join(self, rank: RankProcess, key: str, number: int, size: int) -> RankProcess:
        """Take part in a world of so many ranks."""


class Seat:
    """That of one rank, the process `pid`, which watches know by a `number` of its own."""

    def __init__(
        self,
        rank: RankProcess,
        connection: Connection,
        watches: Watches,
        newcomers: Meets,
        *,
        pid: int,
        number: int,
        is_first: bool = False,
    ) -> None:
        self._rank, self._connection, self._watches = rank, connection, watches
        self._newcomers, self._pid, self._seat = newcomers, pid, number
        self._is_first = is_first  # not one that the program has started
        rank.opener = number
        self._clock, self._world = rank.clock, rank.world
        self._objects: dict[int, Any] = {
            CLOCK: rank.clock,
            HOST_THREAD: rank.host_thread,
            SEAT: self,
        }
        self._begun: Iterator[tuple] = iter(())  # what came together and is yet to be carried out
        self._open: dict[int, Exchange] = {}  # whose values the process has yet to take
        self._blocks = FarBlocks()
        self._stores: list[RankStore] = []
        self._tapes: dict[int, Tape] = {}
        self._here: Any = SimpleNamespace(rank=rank)
        self._error: BaseException | None = None  # of what needed no answer
        self._report: dict[str, Any] | None = None
        self._number = 0  # of what the call under way makes
        self._may_break_off = False  # what the call under way waits for
        self._poll: Any = None
        if hasattr(select, "poll"):  # quicker than a connection's own, but not on Windows
            self._poll = select.poll()
            self._poll.register(connection, select.POLLIN)
        self._idleness = Idleness(pid)
        rank.calls = self._calls

    @property
    def world(self) -> Participants:
        """That of its rank now."""
        return self._world

    def serve(self) -> None:
        """Carry out all that the process sends, until it ends."""
        try:
            self._world.scheduler.begin(self._rank.index)
            with self._world.rt.host_threads.rank(self._rank.host_thread):
                self._carry_out_all()
        except Ended as ended:
            self._error = self._end(ended)
            self._refuse_all()
        finally:
            if self._watches.ended(self._seat, self._report):
                self._world.scheduler.end()
            self._world.scheduler.finish(self._rank.index)

    def _carry_out_all(self) -> None:
        lock = self._world.rt.host_threads.lock
        while (calls := self._received(rests=True)) is not None:
            self._begun = iter(calls)
            for call in self._begun:
                with lock:  # of the clock; who waits for a turn gives it up
                    self._carry_out(call)
            with lock:
                self._world.look_at_the_time(self._rank.index)

    def _refuse_all(self) -> None:
        """Let a process know that all is over, whenever it asks; what it prints is printed."""
        calls: Iterable[tuple] | None = self._begun
        while calls is not None:
            for kind, *call in calls:
                if kind in (ASK, READ):
                    target, name, args, _, number = call
                    is_last = target == SEAT and name == "end"
                    if is_last:
                        self.end(*args)
                    self._answer(number, is_last, None if is_last else self._error)
                elif kind == POST and call[:2] == [SEAT, "say"]:
                    self.say(*call[2])
                elif kind == NUDGE:
                    self._answer(NUDGE, True, None)
            calls = self._received()

    def _received(self, *, rests: bool = False) -> list[tuple] | None:
        while rests and self._world.size > 1 and not self._has_come(LOOKS_S):
            if self._idleness.lasts():
                self.rest()
        try:
            calls: list[tuple] = marshal.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return calls

    def _carry_out(self, call: tuple) -> None:
        kind = call[0]
        if kind == DROP:
            self._objects.pop(call[1], None)
        elif kind == NUDGE:
            self._answer(NUDGE, True, None)
        elif kind in (ASK, READ):
            self._carry_out_question(*call)
        else:
            self._carry_out_order(*call)

    def _carry_out_order(
        self, kind: int, target: int, name: str, args: tuple, number: int = 0
    ) -> None:
        """What needs no answer: the next that does is told what it raises."""
        self._number = number
        try:
            found = self._objects[target]
            if kind == WRITE:
                setattr(found, name, args)
                return
            made = getattr(found, name)(*unpacked(args, self._objects))
        except Exception as error:
            self._error = self._error or error
            made = _Failed(error)
        if kind == MAKE:
            self._objects[number] = made

    def _carry_out_question(
        self, kind: int, target: int, name: str, args: tuple, place: Place, number: int
    ) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._answer(number, False, error)
            return
        self._rank.place = None if place is None else CallSite(*place)
        self._may_break_off = name not in ONCE
        try:
            value = getattr(self._objects[target], name)
            if kind == ASK:
                value = value(*unpacked(args, self._objects))
        except BrokenOff:
            self._answer(number, None, None)
        except Ended as ended:
            self._answer(number, False, self._end(ended))
            raise
        except Exception as error:
            self._answer(number, False, error)
        else:
            self._answer(number, True, value)
        finally:
            self._may_break_off = False

    def _calls(self) -> bool:
        """Whether the process says something while it waits for an answer."""
        return self._may_break_off and self._has_come(0.0)

    def _has_come(self, seconds: float) -> bool:
        """Whether the process says something, or has ended, within that time."""
        if self._poll is None:
            return self._connection.poll(seconds)
        return bool(self._poll.poll(seconds * 1e3))

    def _end(self, ended: Ended) -> BaseException:
        """What a process is told whose world has ended: one that the program has started is the
        only one that can say why."""
        error = self._world.scheduler.error
        if self._is_first:
            return ended
        return error or RuntimeError("another process of its group has ended")

    def _answer(self, number: int, is_value: bool | None, value: object) -> None:
        done = [made for made, exchange in self._open.items() if exchange.is_over()]
        for made in done:
            del self._open[made]
        with suppress(OSError):  # of a process that has gone
            self._connection.send_bytes(_pickled(number, is_value, value, done))

    def come(self, exchange: Exchange, seconds: float | None) -> str:
        """Let others run until what an exchange takes is here: see `Exchange.come`."""
        return exchange.come(_time(seconds))

    def check_in_time(self, exchange: Exchange, seconds: float | None) -> None:
        """Raise if an exchange ends too late: see `Exchange.check_in_time`."""
        exchange.check_in_time(_time(seconds))

    # --- what a rank asks for ----------------------------------------------------------------

    def group(self, name: str, ranks: tuple[int, ...]) -> Rendezvous:
        """Where a group meets."""
        return self._world.rendezvous(name, ranks)

    def group_number(self, group: Rendezvous) -> int:
        """The number of a group, as ranks have made them."""
        return group.number

    def begun(self, group: Rendezvous) -> int:
        """How many collectives the rank has begun in a group."""
        return group.begun(group.ranks.index(self._rank.number))

    def begin(
        self,
        group: Rendezvous,
        call: tuple,
        parcel: tuple,
        on_device: int | None,
        flight: tuple,
        send: tuple | None,
        by_host: tuple[int, int] | None,
    ) -> Exchange:
        """Take part in a collective or a send: see `Participant.begin`."""
        name, text, kind, nbytes, place, is_read = call
        came, called_at = Parcel(*parcel), CallSite(*place)
        with unwatched(), torch.no_grad():
            values = self._blocks.unpacked(came)
        parts = [
            FarCall(
                text=words,
                of_kind=kind,
                reads_others=is_read,
                name=name,
                gives=gives,
                takes=takes,
                op=op,
                root=root,
            )
            for (words, op, root, _, _), (gives, takes) in zip(came.parts, values, strict=True)
        ]
        shared: dict[str, Any] = {"name": name, "nbytes": nbytes, "called_at": called_at}
        if len(parts) == 1:
            (only,) = parts
            shared |= {"gives": only.gives, "takes": only.takes, "op": only.op, "root": only.root}
        else:
            shared["parts"] = parts
        made = FarCall(text=text, of_kind=kind, reads_others=is_read, **shared)
        described: Any = (flight[0], group, *flight[1:9], called_at, *flight[9:])
        noted = Flight(*described)
        self._rank.flights.keep(noted)
        sent = None
        if send is not None:
            way, communicator, batch = send
            beside = None if batch is None else self._objects.setdefault(batch, object())
            sent = Send(way, communicator, beside)
        exchange = self._rank.begin(group, made, on_device, noted, sent, by_host)
        self._open[self._number] = exchange
        return exchange

    def trace(self, active: bool) -> dict[str, Any]:
        """The dump of the flight recorder."""
        return dumped(self._rank.flights, self._rank.host_thread.now_s, active=active)

    def records(self, kept: int, file: str | None) -> None:
        """How many calls are noted, and where they are written, as the rank's variables say."""
        self._rank.flights.begin(kept, file)

    def look(self) -> None:
        """Let the watchdog look."""
        self._rank.watchdog.look()

    def has_open_exchange(self, device: int) -> bool:
        """Whether exchanges of that device wait for others."""
        return self._world.has_open_exchange(device)

    def pause(self, text: str) -> None:
        """Let others go on once."""
        self._rank.wait(lambda: True, text, polite=True)

    def store_at(self, name: str) -> int:
        """The number of a store that all ranks have by that name."""
        return self._kept(RankStore(self._world.stores.at(name), self._here))

    def open_tcp_store(self, pickled: bytes) -> tuple[int, int]:
        """The number of a TCPStore that the rank opens, and its port."""
        store = open_tcp_store(self._here, **pickle.loads(pickled))
        return self._kept(store), store.port

    def open_file_store(self, path: str) -> int:
        """The number of a FileStore that the rank opens."""
        return self._kept(open_file_store(self._here, path))

    def _kept(self, store: RankStore) -> int:
        self._stores.append(store)
        return len(self._stores) - 1

    def of_store(self, number: int, method: str, pickled: bytes) -> object:
        """The result of a store's method."""
        args, kwargs = pickle.loads(pickled)
        found: object = getattr(self._stores[number], method)(*args, **kwargs)
        return found

    def set_store_timeout(self, number: int, seconds: float) -> None:
        """How long a store waits."""
        self._stores[number].set_timeout(timedelta(seconds=seconds))

    # --- processes of the program's own ------------------------------------------------------

    def has_waited_for_others(self) -> None:
        """The process has waited for those that it has started."""
        self._newcomers.catch_up(self._pid, self._rank.host_thread)

    def rest(self) -> None:
        """Let others go on until the process sends something: it waits for what is no matter of
        the run, such as a task of a pool."""
        if self._world.size == 1:
            return
        outside, index = self._world.outside, self._rank.index
        outside.add(index)
        try:
            come = partial(self._has_come, 0.0)
            self._world.scheduler.wait(index, come, "something outside of the run")
        finally:
            outside.discard(index)

    def has_threads(self) -> None:
        """The process may say something while it waits."""
        self._world.has_threads = True

    def hold(self, device: int, nbytes: int) -> int:
        """Note what the process is to hold of a device; what others do."""
        return self._newcomers.hold(self._seat, device, nbytes)

    def join_world(self, key: str, number: int, size: int) -> None:
        """Become a rank of a world."""
        self._world.scheduler.finish(self._rank.index)  # its turn there is for the others
        self._rank = self._newcomers.join(self._rank, key, number, size)
        self._rank.calls, self._is_first = self._calls, False
        self._world, self._here.rank = self._rank.world, self._rank
        here.rank = self._rank

    # --- what the run wants to know ----------------------------------------------------------

    def say(self, stream: int, text: str) -> None:
        """Print for the rank, in its turn."""
        self._watches.said(self._seat, stream, text)

    def mark(self, host_thread: HostThread, optimizer: int, stream: StreamKey) -> None:
        """Mark the end of a step of an optimizer."""
        work = self._clock.record_event(host_thread, stream)
        self._watches.stepped(self._seat, optimizer, work)

    def wait_begins(self, host_thread: HostThread) -> float:
        """When a wait for a device begins."""
        return host_thread.now_s

    def wait_ends(
        self, host_thread: HostThread, since_s: float, number: int, call: str, place: tuple, at: str
    ) -> None:
        """Note how long a wait for a device took."""
        seconds = host_thread.now_s - since_s
        self._watches.waited(self._seat, number, call, CallSite(*place), seconds, at)

    def end(self, pickled: bytes) -> None:
        """The last that the process says."""
        self._report = pickle.loads(pickled)

    def record(self, number: int) -> None:
        """Begin a timeline of the process's own."""
        tape: Any = Tape()
        self._tapes[number] = tape
        self._clock.timelines = [*self._clock.timelines, tape]

    def note_details(self, number: int) -> None:
        """The next calls are of the operation that the process knows by that number."""
        for tape in self._tapes.values():
            tape.details = number

    def end_recording(self, number: int) -> list[tuple[str, tuple, int]]:
        """End it; what it was told."""
        tape = self._tapes.pop(number)
        self._clock.timelines = [other for other in self._clock.timelines if other is not tape]
        return tape.told

    def grow(self, pickled: bytes) -> None:
        """Go on with a machine of more accelerators."""
        rt = self._world.rt
        rt.grow(pickle.loads(pickled))

    def join(
        self,
        host_thread: HostThread,
        stream: StreamKey,
        work: QueuedWork,
        name: str,
        nbytes: int,
    ) -> None:
        """See `Clock.join`."""
        self._clock.join(host_thread, stream, work, name, nbytes=nbytes)


def _pickled(number: int, is_value: bool | None, value: object, done: list[int]) -> bytes:
    try:
        return pickle.dumps((number, is_value, value, done))
    except Exception as error:  # such as an error that holds what only this process has
        told = RuntimeError(f"{type(value).__name__}: {value} ({error})")
        return pickle.dumps((number, False, told, done))


def _time(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
