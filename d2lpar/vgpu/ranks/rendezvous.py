"""Where ranks meet: the n-th collective of a group is one, and sends are matched with receives."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ...machines import Machine
from ...machines.collective_cost import Fabric, taken_share
from ..device_naming import text
from ..sim.clock import Clock, HostThread
from ..sim.copy_routes import Port
from ..sim.event_queue import QueuedWork
from ..torch_backend.runtime import current_runtime
from . import cost
from .alike import Alike
from .collective_calls import CollectiveCall, carry_out

# Seconds, ports, and which devices give which shares of their multiprocessors.
Price = tuple[float, Sequence[Port], Sequence[tuple[int, float]]]


@dataclass
class PendingCollective:
    """One collective, or one send with its receive: who is there already, and its work."""

    members: Sequence[int]  # numbers in the group
    calls: dict[int, CollectiveCall] = field(default_factory=dict)
    devices: dict[int, int | None] = field(default_factory=dict)  # of members; None: the host
    price: Price = (0.0, (), ())
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

    def forget_tensors(self) -> None:
        """Keep none of what was carried out: each rank's own work does, as long as torch has it. A
        rank whose turn has not come yet would hold the memory of all others."""
        self.calls = {member: CollectiveCall(call.name) for member, call in self.calls.items()}

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
            self.work = clock.announce(0.0, (), len(self.members))
        self.joined += 1
        if self.joined == len(self.members):
            clock.equip(self.work, *self.price)
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
        self._collectives: deque[PendingCollective] = deque()
        self._sends: defaultdict[tuple, deque[PendingCollective]] = defaultdict(deque)

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
            self._collectives.append(PendingCollective(self._present))
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
        if pending.is_complete:
            if device is not None:
                pending.price = self._price(call, pending.devices)
            calls = pending.calls
            if self._alike is not None:
                calls = self._alike.with_stand_ins(self.ranks, calls)
            _carry_out([calls[i] for i in range(len(self.ranks))], pending.members)
            pending.forget_tensors()
            self._collectives.popleft()
            self._first += 1
        return pending

    def pass_on(
        self, member: int, way: tuple[int, int], tag: int, call: CollectiveCall, device: int | None
    ) -> PendingCollective:
        """Take part in the next send on a way (source, target) with this tag."""
        source, target = way
        if self._alike is not None:
            self._alike.check_send(self.ranks[source], self.ranks[target])
        pendings = self._sends[source, target, tag]
        pending = next((m for m in pendings if member not in m.calls), None)
        if pending is None:
            pending = PendingCollective(way, is_send=True)
            pendings.append(pending)
        self._check_device(member, device, pending.devices)
        pending.calls[member], pending.devices[member] = call, device
        if pending.is_complete:
            if device is not None:
                devices = self._devices(pending.devices)
                ends = devices[source], devices[target]
                pending.price = (*cost.send(self._machine, *ends, call.nbytes), ())
            pendings.remove(pending)
            self._deliver(pending, source, target)
            pending.forget_tensors()
        return pending

    def _deliver(self, pending: PendingCollective, source: int, target: int) -> None:
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
