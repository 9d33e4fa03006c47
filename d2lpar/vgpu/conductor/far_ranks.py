"""A rank in its own process: the world, groups, exchanges and stores that the conductor has."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ...timeline.host_processes import rank_name
from ..races.call_sites import CallSite, Mark, call_site_of, mark
from ..ranks.calls.collective_calls import CollectiveCall
from ..ranks.calls.flight_recorder import Flight
from ..ranks.private.dtensor import LibraryAsImported
from ..ranks.state.process_state import MASTER
from ..ranks.world.participants import Send
from ..ranks.world.rank import ProcessStart, Rank
from ..ranks.world.rank_scheduler import Words
from ..torch_backend.machine.runtime import Runtime
from .far_clock import FarHostThread
from .values import OwnBlocks, Taken
from .wire import SEAT, FarObject, Wire


def place_here() -> tuple[str, int]:
    """Where the program is."""
    return place_of(mark())


def place_of(marked: Mark | CallSite | None) -> tuple[str, int]:
    """File and line, as they travel."""
    site = call_site_of(marked)
    return site.file, site.line


class FarGroup:
    """Where a group of ranks meets, as its process group and the flight recorder know it."""

    def __init__(self, wire: Wire, name: str, ranks: Sequence[int]) -> None:
        self.far = FarObject(wire)
        self.ranks = list(ranks)
        wire.make(self.far, SEAT, "group", (name, tuple(ranks)))
        self.number: int = wire.ask(SEAT, "group_number", (self.far,))

    def __str__(self) -> str:
        name = f"group {self.number}" if self.number else "the group"
        return f"{name} of ranks {', '.join(map(str, self.ranks))}"

    def begun(self, member: int) -> int:
        """How many collectives this rank has begun in it."""
        begun: int = self.far.wire.ask(SEAT, "begun", (self.far,))
        return begun


class FarExchange(FarObject):
    """One call of this rank: see `ranks.world.exchange.Exchange`."""

    __slots__ = ("_process",)

    def __init__(self, process: ProcessRank) -> None:
        super().__init__(process.wire)
        self._process = process

    def queue(self, host_thread: FarHostThread, stream: tuple[int, int] | None) -> None:
        """Put it on the clock."""
        self.wire.post(self.number, "queue", (host_thread, stream))

    def watch(self) -> None:
        """Let watchdogs look."""
        self.wire.post(self.number, "watch", ())

    def delay(self, host_thread: FarHostThread, stream: tuple[int, int]) -> None:
        """Let later work of a stream come after it."""
        self.wire.post(self.number, "delay", (host_thread, stream))

    def block(self, host_thread: FarHostThread, name: str) -> None:
        """Let the host wait until it is over."""
        self.wire.wait(self.number, "block", (host_thread, name), answers=False)

    def come(self, timeout: timedelta | None = None) -> str:
        """Let others run until what it takes is here; who waits where, if the timeout was over."""
        seconds = None if timeout is None else timeout.total_seconds()
        report: str = self.wire.ask(SEAT, "come", (self, seconds), place_here())
        return report

    def check_in_time(self, timeout: timedelta | None) -> None:
        """Raise if it ends later than who waits for it does."""
        seconds = None if timeout is None else timeout.total_seconds()
        self.wire.ask(SEAT, "check_in_time", (self, seconds), place_here())

    def let_others_go_on(self, text: str) -> None:
        """Let others run, unless it is over."""
        self.wire.ask(self.number, "let_others_go_on", (text,), place_here())

    def timed_out(self, timeout: timedelta | None, report: str) -> dist.DistBackendError:
        """The error of a rank that has not waited longer."""
        text = self.wire.ask(self.number, "text", ())
        return dist.DistBackendError(
            f"rank {self._process.number} caught collective operation timeout: {text} did not end "
            f"in {timeout}: {report}"
        )

    def is_done(self, host_thread: FarHostThread) -> bool:
        """Whether it is over by now, as the host sees it."""
        return bool(self.wire.ask(self.number, "is_done", (host_thread,)))

    def is_known_done(self, host_thread: FarHostThread) -> bool:
        """The same of what all have come to, by what is queued already."""
        return bool(self.wire.ask(self.number, "is_known_done", (host_thread,)))

    def is_over(self) -> bool:
        """Whether nobody is to be waited for."""
        return bool(self.wire.ask(self.number, "is_over", ()))

    def is_complete(self) -> bool:
        """Whether all have come to it."""
        return bool(self.wire.ask(self.number, "is_complete", ()))

    def late(self) -> list[int]:
        """The ranks that have not come, or came too late."""
        ranks: list[int] = self.wire.ask(self.number, "late", ())
        return ranks


class FarStore(dist.Store):
    """A store that the conductor has: any method of `RankStore`."""

    def __init__(self, wire: Wire, number: int, host: str = "", port: int = 0) -> None:
        super().__init__()
        self._wire, self._number = wire, number
        self.host, self.port = host, port
        self._timeout = timedelta(seconds=300)

    @property
    def timeout(self) -> timedelta:
        """How long a wait lasts at most, in simulated time."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Take note of another."""
        self._timeout = timeout
        self._wire.post(SEAT, "set_store_timeout", (self._number, timeout.total_seconds()))

    def clone(self) -> FarStore:
        """The same store."""
        return self


def _of_store(name: str) -> Callable[..., object]:
    def method(self: Any, *args: object, **kwargs: object) -> object:
        pickled = pickle.dumps((args, kwargs))
        return self._wire.ask(SEAT, "of_store", (self._number, name, pickled), place_here())

    method.__name__ = name
    return method


for _name in (
    *("set", "get", "wait", "check", "add", "append", "compare_set", "delete_key", "num_keys"),
    *("list_keys", "multi_get", "multi_set", "queue_push", "queue_pop", "queue_len"),
    "has_extended_api",
):
    setattr(FarStore, _name, _of_store(_name))


class ProcessWorld:
    """All ranks of the run, as one that is a process of its own knows them."""

    def __init__(self, rt: Runtime, wire: Wire, devices: Sequence[Sequence[int]]) -> None:
        self.rt, self.wire, self.size, self.alike = rt, wire, len(devices), None
        self.devices = [tuple(of_rank) for of_rank in devices]
        self.library = LibraryAsImported()
        self.ranks: list[Rank] = []
        self._groups: dict[tuple, FarGroup] = {}
        rt.host_threads.notes_others = self.size == 1

    def become(self, size: int) -> None:
        """Be a world of so many ranks, which see the same devices."""
        self.size, self.devices = size, self.devices[:1] * size
        self.rt.host_threads.notes_others = size == 1
        self._groups.clear()

    def rendezvous(self, name: str, ranks: Sequence[int]) -> FarGroup:
        """Where the ranks of the group of that name meet."""
        key = (name, *ranks)
        if key not in self._groups:
            self._groups[key] = FarGroup(self.wire, name, ranks)
        return self._groups[key]

    def has_open_exchange(self, device: int) -> bool:
        """Whether exchanges of that device wait for others."""
        return bool(self.wire.ask(SEAT, "has_open_exchange", (device,)))

    def end_by_watchdog(self, *call: object) -> None:
        """The conductor's watchdogs look."""


class _FarWatchdog:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def look(self) -> None:
        self._wire.post(SEAT, "look", ())


class ProcessRank(Rank):
    """A rank that is a process of its own."""

    def __init__(
        self, world: Any, number: int, start: ProcessStart, blocks: OwnBlocks, *, is_free: bool
    ) -> None:
        self.wire: Wire = world.wire
        # The program has started it, or others, and says later which rank it is.
        self.is_free = is_free
        super().__init__(world, number, number, start)
        self.watchdog: Any = _FarWatchdog(self.wire)
        world.ranks = [self]
        self._blocks = blocks
        self._open: dict[int, tuple[FarExchange, Taken]] = {}
        # So that a batch has one number as long as it is there, and no other has it then.
        self._batches: WeakKeyDictionary[Any, FarObject] = WeakKeyDictionary()
        self._has_told = False
        self.wire.on_answer = self._take
        world.rt.clock.brings_values = lambda: bool(self._open)

    def _host(self, start: ProcessStart) -> Any:
        return self.world.rt.clock.host

    def begin(  # type: ignore[override]
        self,
        group: FarGroup,
        call: CollectiveCall,
        on_device: int | None,
        flight: Flight,
        send: Send | None = None,
        by_host: tuple[int, int] | None = None,
    ) -> FarExchange:
        """Take part in the group's next collective, or in a send. What the conductor raises is
        raised by the next call that asks it something."""
        if not self._has_told:
            self._has_told = True
            self.wire.post(SEAT, "records", (self.flights.flights.maxlen, self.flights.file))
        with torch.no_grad():
            parcel, taken = self._blocks.packed(call)
        exchange = FarExchange(self)
        self._open[exchange.number] = exchange, taken
        words = (
            call.name, str(call), (call.name, *sorted(map(repr, call.kind[1:]))), call.nbytes,
            place_of(call.called_at), call.is_read,
        )  # fmt: skip
        noted = (
            flight.record, flight.sequence, flight.operation, flight.way, flight.text, flight.name,
            flight.operator, flight.sizes, flight.dtypes, flight.function, flight.timeout_s, 0.0,
            flight.is_nccl, flight.is_watched,
        )  # fmt: skip
        sent = None
        if send is not None:
            batch = None
            if send.batch is not None:
                batch = self._batches.setdefault(send.batch, FarObject(self.wire)).number
            sent = send.way, send.communicator, batch
        args = (group.far, words, tuple(parcel), on_device, noted, sent, by_host)
        self.wire.make(exchange, SEAT, "begin", args)
        return exchange

    def join(self, key: str, number: int, size: int) -> None:
        """Be the rank with that number of so many that join by the same key, if the program has
        started this process, and not who starts ranks."""
        if self.is_free and size > 1:
            self.wire.ask(SEAT, "join_world", (key, number, size))
            world: Any = self.world
            world.become(size)
            self.number = self.index = number
            self.host_thread.name = rank_name(number)
            if self.devices:  # what NCCL takes for its own without being told
                self.device = self.devices[number % len(self.devices)]

    def _take(self, done: Sequence[int]) -> None:
        """Take the values of calls that are over; again, if a handler of a signal came between."""
        for number in done:
            if (found := self._open.get(number)) is not None:
                with torch.no_grad():
                    self._blocks.take(found[1])
                if self._open.pop(number, None) is not None:
                    self._blocks.free(found[1])

    def wait(
        self,
        ready: Callable[[], bool],
        text: Words,
        *,
        polite: bool = False,
        timeout: timedelta | None = None,
    ) -> str:
        """Let other ranks go on once: this one waits for nothing that the conductor cannot see."""
        self.wire.ask(SEAT, "pause", (text if isinstance(text, str) else text(),), place_here())
        return ""

    def store(self, name: str) -> Any:
        """The store of all ranks that has this name."""
        return FarStore(self.wire, self.wire.ask(SEAT, "store_at", (name,)))

    def torchrun_s_store(self) -> Any:
        """The store by which ranks would find one another that torchrun has started."""
        host, port = MASTER
        number = self.wire.ask(SEAT, "store_at", (f"the TCPStore at port {port}",))
        return FarStore(self.wire, number, host, port)

    def open_tcp_store(self, **asked: Any) -> dist.Store:
        """A TCPStore."""
        number, port = self.wire.ask(SEAT, "open_tcp_store", (pickle.dumps(asked),), place_here())
        store = FarStore(self.wire, number, asked["host"], port)
        store.set_timeout(asked["timeout"])
        return store

    def open_file_store(self, path: str) -> dist.Store:
        """A FileStore."""
        return FarStore(self.wire, self.wire.ask(SEAT, "open_file_store", (path,)))

    def trace(self, *, active: bool) -> dict[str, Any]:
        """The dump of its flight recorder."""
        found: dict[str, Any] = self.wire.ask(SEAT, "trace", (active,))
        return found
