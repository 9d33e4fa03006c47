"""Where ranks meet: the n-th collective of a group is one, and sends are matched with receives."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...machines import Machine
from ...machines.collective_cost import Fabric
from ..sim.clock import Clock, HostThread
from ..sim.copy_routes import Port
from ..sim.event_queue import QueuedWork
from . import cost
from .alike import Alike
from .collective_calls import CollectiveCall, carry_out


@dataclass
class PendingCollective:
    """One collective, or one send with its receive: who is there already, and its work."""

    members: Sequence[int]  # numbers in the group
    seconds: float
    ports: tuple[Port, ...]
    calls: dict[int, CollectiveCall] = field(default_factory=dict)
    work: QueuedWork | None = None
    joined: int = 0  # hosts whose call is on the clock
    is_send: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all have come."""
        return len(self.calls) == len(self.members)

    @property
    def missing(self) -> list[int]:
        """The members that have not come yet."""
        return [member for member in self.members if member not in self.calls]

    def queue(
        self,
        host_thread: HostThread,
        clock: Clock,
        stream: tuple[int, int] | None,
        name: str,
        more: dict,
    ) -> None:
        """Put a rank's call on the clock, on a stream of its device or (None) on its host alone."""
        if self.work is None:
            self.work = clock.announce(self.seconds, self.ports, len(self.members))
        self.joined += 1
        if stream is None:
            clock.meet(host_thread, self.work)
        else:
            clock.join(host_thread, stream, self.work, name, **more)

    def give_up(self, host_thread: HostThread, clock: Clock) -> None:
        """Let what follows on the clock go on without those that will not come."""
        if self.work is not None:
            for _ in range(len(self.members) - self.joined):
                clock.meet(host_thread, self.work)
        self.joined = len(self.members)


class Rendezvous:
    """The ranks of a group, by their numbers in it: `ranks` in the world, on `devices`."""

    def __init__(
        self,
        ranks: Sequence[int],
        devices: Sequence[int],
        machine: Machine,
        alike: Alike | None = None,
    ) -> None:
        self.number = 0  # of the group, as the ranks have made them; 0 is that of all
        self.ranks, self.devices = list(ranks), list(devices)
        self._alike = alike
        self._present = range(len(self.ranks)) if alike is None else alike.present(self.ranks)
        self._machine = machine
        # Processes may share a device; they exchange what is on their hosts then, as over gloo.
        self.shares_devices = len(set(devices)) < len(devices)
        alone = len(devices) == 1 or self.shares_devices
        self._fabric = None if alone else cost.fabric_of(machine, devices)
        self._ports = () if self.shares_devices else cost.ports_of(machine, devices)
        self._begun = [0] * len(self.ranks)  # collectives, by rank
        self._first = 0
        self._collectives: deque[PendingCollective] = deque()
        self._sends: defaultdict[tuple, deque[PendingCollective]] = defaultdict(deque)

    @property
    def fabric(self) -> Fabric | None:
        """What joins the ranks; None for one alone."""
        return self._fabric

    def __str__(self) -> str:
        name = f"group {self.number}" if self.number else "the group"
        return f"{name} of ranks {', '.join(map(str, self.ranks))}"

    def meet(self, member: int, call: CollectiveCall, *, on_host: bool) -> PendingCollective:
        """Take part in the group's next collective; what it computes is done when all are there.

        Raises RuntimeError if this is another collective than that of the others.
        """
        number = self._begun[member]
        self._begun[member] += 1
        if number - self._first == len(self._collectives):
            seconds, ports = (0.0, ()) if on_host else self._cost(call)
            self._collectives.append(PendingCollective(self._present, seconds, ports))
        pending = self._collectives[number - self._first]
        for other, theirs in pending.calls.items():
            if theirs.kind != call.kind:
                raise RuntimeError(
                    f"collective {number + 1} of {self} is {call} on rank {self.ranks[member]}, "
                    f"but {theirs} on rank {self.ranks[other]}: all must call the same, in order: "
                    f"{call.by(self.ranks[member])}, {theirs.by(self.ranks[other])}"
                )
        pending.calls[member] = call
        if pending.is_complete:
            calls = pending.calls
            if self._alike is not None:
                calls = self._alike.with_stand_ins(self.ranks, calls)
            carry_out([calls[i] for i in range(len(self.ranks))], pending.members)
            self._collectives.popleft()
            self._first += 1
        return pending

    def pass_on(
        self, member: int, way: tuple[int, int], tag: int, call: CollectiveCall, *, on_host: bool
    ) -> PendingCollective:
        """Take part in the next send on a way (source, target) with this tag."""
        source, target = way
        if self._alike is not None:
            self._alike.check_send(self.ranks[source], self.ranks[target])
        pendings = self._sends[source, target, tag]
        pending = next((m for m in pendings if member not in m.calls), None)
        if pending is None:
            ends = (self.devices[source], self.devices[target])
            price = (0.0, ()) if on_host else cost.send(self._machine, *ends, call.nbytes)
            pending = PendingCollective(way, *price, is_send=True)
            pendings.append(pending)
        pending.calls[member] = call
        if pending.is_complete:
            pendings.remove(pending)
            self._deliver(pending, source, target)
        return pending

    def _deliver(self, pending: PendingCollective, source: int, target: int) -> None:
        given, taken = pending.calls[source], pending.calls[target]
        if given.kind[1:] != taken.kind[1:]:
            raise RuntimeError(
                f"rank {self.ranks[source]} sends {given} to rank {self.ranks[target]}, which "
                f"expects {taken}: number of elements and data type must be the same: "
                f"{given.by(self.ranks[source])}, {taken.by(self.ranks[target])}"
            )
        carry_out(
            [
                CollectiveCall("send", gives=[None, *given.gives]),
                CollectiveCall("recv", takes=taken.takes),
            ],
            range(2),
        )

    def open_collectives(self) -> list[PendingCollective]:
        """Those that not all have come to."""
        return [*self._collectives, *(m for pendings in self._sends.values() for m in pendings)]

    def under_way(self) -> list[tuple[str, PendingCollective]]:
        """The same, with what to call them."""
        found = [
            (f"collective {self._first + i + 1} of {self}", pending)
            for i, pending in enumerate(self._collectives)
        ]
        for (source, target, _), pendings in self._sends.items():
            way = f"send from rank {self.ranks[source]} to rank {self.ranks[target]} of {self}"
            found += [(way, pending) for pending in pendings]
        return found

    def _cost(self, call: CollectiveCall) -> tuple[float, tuple[Port, ...]]:
        if self._fabric is None:
            return 0.0, ()
        return cost.collective_s(call.name, call.nbytes, self._fabric), self._ports
