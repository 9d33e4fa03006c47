"""Where ranks meet: in the n-th collective of a group, or the n-th send and receive on a way.

What GPUs exchange runs in the order of the calls (see `call_order`): who has come first on one
stream waits until what is before it there has been exchanged.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from ....machines import Machine
from ....machines.collective_cost import Fabric, taken_share
from ...device_naming import text
from ...signals import closed_to_handlers
from ...sim.clock import Clock, HostThread
from ...sim.copy_routes import Port
from ...sim.event_queue import QueuedWork
from ...torch_backend.machine.runtime import current_runtime
from ..calls.call_order import CallOrder
from ..calls.collective_calls import CollectiveCall, carry_out
from ..calls.flight_recorder import Flight
from . import cost
from .alike import Alike

# Seconds, ports, and which devices give which shares of their multiprocessors.
Price = tuple[float, Sequence[Port], Sequence[tuple[int, float]]]

# Bytes that a send of NCCL leaves with the other before its receive has come: the default of
# NCCL_BUFFSIZE. Nobody may rely on it ("This operation is blocking for the GPU", says NCCL of
# ncclSend), and how much there really is depends on channels and protocols; but what fits into one
# channel's buffer does pass.
SEND_BUFFER = 2**22


@dataclass(eq=False)
class PendingCollective:
    """One collective, or one send with its receive: who is there already, and its work.

    `is_complete` says that it has been exchanged. A send `is_buffered` that NCCL's buffer has taken
    from the source without the receive; `departed` is what the stream of the source waits for then.
    """

    members: Sequence[int]  # numbers in the group; of a send, the source and the target
    number: int = 0  # of a collective in the group, from 1
    calls: dict[int, CollectiveCall] = field(default_factory=dict)
    devices: dict[int, int | None] = field(default_factory=dict)  # of members; None: the host
    flights: dict[int, Flight] = field(default_factory=dict)  # of members who queue their call
    on_clock: int = 0  # of how many members the call has been queued
    price: Price = (0.0, (), ())
    work: QueuedWork | None = None
    departed: QueuedWork | None = None
    limit_s: float = math.inf  # until when all wait for it who are there
    is_complete: bool = False
    is_buffered: bool = False

    @property
    def is_send(self) -> bool:
        """Whether it is a send with its receive."""
        return not self.number

    @property
    def is_there(self) -> bool:
        """Whether all have come."""
        return len(self.calls) == len(self.members)

    def is_over(self, member: int) -> bool:
        """Whether a member has nobody to wait for."""
        return self.is_complete or (self.is_buffered and member == self.members[0])

    def work_of(self, member: int) -> QueuedWork | None:
        """What a member waits for on the clock."""
        leaves = self.is_send and self.departed is not None and member == self.members[0]
        return self.departed if leaves else self.work

    @property
    def missing(self) -> list[int]:
        """The members that have not come yet."""
        return [member for member in self.members if member not in self.calls]

    def forget_tensors(self) -> None:
        """Keep none of what was carried out: each rank's own work does, as long as torch has it. A
        rank whose turn has not come yet would hold the memory of all others."""
        self.calls = {member: CollectiveCall(call.name) for member, call in self.calls.items()}

    @closed_to_handlers
    def queue(
        self,
        flight: Flight,
        member: int,
        host_thread: HostThread,
        clock: Clock,
        stream: tuple[int, int] | None,
        name: str,
        more: dict,
    ) -> None:
        """Put a member's call on the clock: on a stream of its device, or (None) its host alone."""
        if self.work is None:
            self.work = clock.announce(0.0, (), len(self.members))
        flight.work = self.work
        self.flights[member] = flight
        self.limit_s = min(self.limit_s, flight.limit_s)
        if len(self.flights) == len(self.members):
            clock.equip(self.work, *self.price)
        if stream is None:
            clock.meet(host_thread, self.work)
        else:
            if self.may_be_buffered(member):
                self.departed = clock.announce(0.0, (), 2)
            clock.join(host_thread, stream, self.work, name, until=self.work_of(member), **more)
        self.on_clock += 1

    def may_be_buffered(self, member: int) -> bool:
        """Whether it is the send of that member, and NCCL's buffer may yet take it."""
        if not self.is_send or member != self.members[0] or self.is_complete:
            return False
        call = self.calls.get(member)
        on_device = self.devices.get(member) is not None
        return call is not None and on_device and call.nbytes <= SEND_BUFFER

    def depart(self) -> None:
        """Let the stream of the source go on: at once from NCCL's buffer, or when it is over."""
        if self.departed is not None:
            rt = current_runtime()
            after = None if self.is_buffered else self.work
            rt.host_threads.ask(rt.clock.depart, self.departed, after)

    def give_up(self, host_thread: HostThread, clock: Clock) -> None:
        """Let what follows on the clock go on without those that will not come."""
        if self.work is not None:
            for _ in range(len(self.members) - self.on_clock):
                clock.meet(host_thread, self.work)
            if self.departed is not None and not (self.is_buffered or self.is_complete):
                clock.depart(host_thread, self.departed, None)


GROUP = "group"  # the communicator of all members


class Rendezvous:
    """The ranks of a group, by their numbers in it: `ranks` in the world.

    What they exchange is on the devices of the tensors of a call, as NCCL has a communicator for
    each set of devices; of ranks that are alike, on devices of their numbers.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        machine: Machine,
        alike: Alike | None = None,
    ) -> None:
        self.number = 0  # of the group, as the ranks have made them; 0 is that of all
        self.ranks = list(ranks)
        self._alike = alike
        self._present = range(len(self.ranks)) if alike is None else alike.present(self.ranks)
        self._machine = machine
        self._communicators: dict[tuple[int, ...], tuple[Fabric, Sequence[Port]]] = {}
        self._begun = [0] * len(self.ranks)  # collectives, by rank
        self._first = 0
        self._collectives: deque[PendingCollective] = deque()  # that not all have come to
        self._sends: defaultdict[tuple, deque[PendingCollective]] = defaultdict(deque)
        self._open: dict[PendingCollective, None] = {}  # what is not exchanged, as it was begun
        self._exchanged: list[PendingCollective] = []  # of these, what not all have queued
        self._order: CallOrder[PendingCollective] = CallOrder()

    def __str__(self) -> str:
        name = f"group {self.number}" if self.number else "the group"
        return f"{name} of ranks {', '.join(map(str, self.ranks))}"

    def begun(self, member: int) -> int:
        """How many collectives a member has begun."""
        return self._begun[member]

    def meet(self, member: int, call: CollectiveCall, device: int | None) -> PendingCollective:
        """Take part in the group's next collective; what it computes is done when all are there.

        `device` is None for the host. Raises RuntimeError if this is another collective
        than that of the others, or on the same device.
        """
        number = self._begun[member]
        self._begun[member] += 1
        if number - self._first == len(self._collectives):
            self._collectives.append(PendingCollective(self._present, number + 1))
            self._open[self._collectives[-1]] = None
        pending = self._collectives[number - self._first]
        for other, theirs in pending.calls.items():
            if theirs.kind != call.kind:
                raise RuntimeError(
                    f"collective {number + 1} of {self} is {call} on rank {self.ranks[member]}, "
                    f"but {theirs} on rank {self.ranks[other]}: all must call the same, in order: "
                    f"{call.by(self.ranks[member])}, {theirs.by(self.ranks[other])}"
                )
        self._check_device(member, device, pending.devices)
        pending.calls[member], pending.devices[member] = call, device
        if device is not None:
            self._order.add((GROUP, member, device), pending)
        if pending.is_there:
            if device is not None:
                pending.price = self._price(call, pending.devices)
            self._collectives.popleft()
            self._first += 1
            self._exchange([pending])
        return pending

    def pass_on(
        self,
        member: int,
        way: tuple[int, int],
        communicator: Hashable,
        call: CollectiveCall,
        device: int | None,
        batch: object = None,
    ) -> PendingCollective:
        """Take part in the next send on a way (source, target) of a communicator.

        On devices it runs behind what the member has begun on that communicator before, and beside
        what is of the same `batch`.
        """
        source, target = way
        if self._alike is not None:
            self._alike.check_send(self.ranks[source], self.ranks[target])
        pendings = self._sends[communicator, way]
        pending = next((m for m in pendings if member not in m.calls), None)
        if pending is None:
            pending = PendingCollective(way)
            pendings.append(pending)
            self._open[pending] = None
        self._check_device(member, device, pending.devices)
        pending.calls[member], pending.devices[member] = call, device
        if device is not None:
            self._order.add((communicator, member, device), pending, batch)
        if pending.is_there:
            if device is not None:
                devices = self._devices(pending.devices)
                ends = devices[source], devices[target]
                pending.price = (*cost.send(self._machine, *ends, call.nbytes), ())
            pendings.remove(pending)
            self._exchange([pending])
        return pending

    def _exchange(self, found: list[PendingCollective]) -> None:
        """Carry out those that all have come to and that are next for all, and what follows."""
        while found:
            pending = found.pop()
            if pending.is_complete or not pending.is_there or not self._order.is_next(pending):
                continue
            if pending.is_send:
                self._deliver(pending)
            else:
                calls = pending.calls
                if self._alike is not None:
                    calls = self._alike.with_stand_ins(self.ranks, calls)
                _carry_out([calls[i] for i in range(len(self.ranks))], pending.members)
            pending.is_complete = True
            pending.forget_tensors()
            del self._open[pending]
            self._exchanged = [p for p in self._exchanged if p.on_clock < len(p.members)]
            self._exchanged.append(pending)
            if not pending.is_buffered:
                pending.depart()
            found += self._order.remove(pending)

    def _deliver(self, pending: PendingCollective) -> None:
        source, target = pending.members
        given, taken = pending.calls[source], pending.calls[target]
        if given.kind[1:] != taken.kind[1:]:
            raise RuntimeError(
                f"rank {self.ranks[source]} sends {given} to rank {self.ranks[target]}, which "
                f"expects {taken}: number of elements and data type must be the same: "
                f"{given.by(self.ranks[source])}, {taken.by(self.ranks[target])}"
            )
        _carry_out(
            [
                CollectiveCall("send", gives=[None, *given.gives]),
                CollectiveCall("recv", takes=taken.takes),
            ],
            range(2),
        )

    def buffer_sends(self, has_left: Callable[[int], bool]) -> bool:
        """Let NCCL's buffer take the sends that are next on their streams, and fit; whether there
        are any. Not those for ranks that have left: they will never be received."""
        found = []
        for pending in self._open:
            member, target = pending.members[0], pending.members[-1]
            if pending.is_buffered or has_left(self.ranks[target]):
                continue
            if pending.may_be_buffered(member) and self._order.is_next(pending, member):
                found.append(pending)
        follow = []
        for pending in found:
            member = pending.members[0]
            call = pending.calls[member]
            gives = [None if values is None else values.clone() for values in call.gives]
            pending.calls[member] = replace(call, gives=gives)
            pending.is_buffered = True
            pending.depart()
            follow += self._order.remove(pending, member)
        self._exchange([*found, *follow])
        return bool(found)

    def open_collectives(self) -> list[PendingCollective]:
        """Those that have not been exchanged: not all have come to them, or to what is before."""
        return list(self._open)

    def unfinished(self) -> list[PendingCollective]:
        """Those, and what has been exchanged, but not all have put on the clock."""
        return [*self._open, *self._exchanged]

    def name(self, pending: PendingCollective) -> str:
        """What to call one of them."""
        if not pending.is_send:
            return f"collective {pending.number} of {self}"
        source, target = (self.ranks[member] for member in pending.members)
        return f"send from rank {source} to rank {target} of {self}"

    def behind(self, pending: PendingCollective, member: int) -> PendingCollective | None:
        """What a member has begun on the same stream before, and that has yet to be exchanged."""
        return self._order.before(pending, member)

    # --- what it takes ----------------------------------------------------------------------

    def _devices(self, devices: Mapping[int, int | None]) -> dict[int, int]:
        """The devices of members that are there, in the machine."""
        found = {member: device for member, device in devices.items() if device is not None}
        if self._alike is not None:
            return dict(enumerate(self.ranks))
        return found

    def _check_device(
        self, member: int, device: int | None, devices: Mapping[int, int | None]
    ) -> None:
        """RuntimeError if another one that is there has the same device. It must not queue its call
        behind that other's on one stream: neither could begin, for the rest of the program."""
        if device is None or self._alike is not None:
            return
        other = next((m for m, theirs in devices.items() if theirs == device), None)
        if other is not None:
            raise RuntimeError(
                f"ranks {self.ranks[other]} and {self.ranks[member]} both exchange tensors of "
                f"{text(device)} (NCCL: Duplicate GPU detected): give each rank a device of its "
                "own, as torch.cuda.set_device(local_rank) does; more ranks than GPUs exchange "
                "CPU tensors, over gloo"
            )

    def _price(self, call: CollectiveCall, devices: Mapping[int, int | None]) -> Price:
        known = self._devices(devices)
        if len(known) < 2:
            return 0.0, (), ()
        fabric, ports = self._communicator(tuple(known[i] for i in range(len(self.ranks))))
        seconds = cost.collective_s(call.name, call.nbytes, fabric)
        taken = []
        for member, device in devices.items():
            gpu = self._machine.accelerators[known[member]]
            share = taken_share(call.nbytes, fabric, gpu.multiprocessors, call.name)
            taken.append((device, share))
        return seconds, ports, taken  # type: ignore[return-value]  # all are on devices

    def _communicator(self, devices: tuple[int, ...]) -> tuple[Fabric, Sequence[Port]]:
        if devices not in self._communicators:
            machine = self._machine
            made = cost.fabric_of(machine, devices), cost.ports_of(machine, devices)
            self._communicators[devices] = made
        return self._communicators[devices]


def _carry_out(calls: Sequence[CollectiveCall], takers: Collection[int]) -> None:
    """Compute what they take, and note how long that has really taken."""
    begin_s = perf_counter()
    carry_out(calls, takers)
    current_runtime().values_s += perf_counter() - begin_s
