"""One virtual rank: its thread's identity, and what it shares with the others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from ...device_naming import text
from ...sim.clock import HostThread
from ...torch_backend.machine.host_threads import HOST
from ...torch_backend.machine.runtime import Runtime, current_runtime
from ...torch_backend.private.torch_modes import unwatched
from ...torch_backend.tensors.tensor import VirtualTensor
from ..calls import flight_recorder
from ..calls.flight_recorder import Flight
from ..private.c10d import Groups
from ..private.dtensor import LibraryAsImported
from ..state.process_state import MASTER, OwnState, ProcessState, variables_of
from ..stores.virtual_stores import OpenStores, RankStore, TCPStore
from .alike import Alike
from .hang_report import explained
from .rank_scheduler import Ended, RankScheduler, Words
from .rendezvous import PendingCollective, Rendezvous
from .unwaited import UnwaitedCollectives
from .watchdog import Watchdog, watchdog_text

_marks = count()
WORLD = "0"  # the name of the group of all ranks

Loggers = dict[Any, dict[str, Any]]  # what a rank has set, by logger and attribute

# Of a group; torch's errors about one that it does not know show this, too.
ENDED = (
    "lasts as long as the call of run_ranks() that it was made in: make it, and what holds it, "
    "such as DistributedDataParallel, where it is used"
)
# .rank: the Rank whose thread this is; .started_by: that which has started it, of other threads
here = threading.local()


@dataclass(frozen=True)
class ProcessStart:
    """How a rank begins that is a process to its program: `current` is its current device.

    `variables` it finds in its environment besides those of who starts it, `arguments` in
    `sys.argv` (None: those of who starts it). Its random numbers are those of whoever starts it if
    `same_random_numbers`, as after a fork, and else its own. `states` are what else it has of its
    own. It `has_parent` if the program starts it, which is a process, too.
    """

    name: str
    current: int
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] | None = None
    states: Sequence[OwnState] = ()
    same_random_numbers: bool = True
    has_parent: bool = False


class World:
    """What the ranks of one run share: the machine, their devices, the scheduler, their groups.

    `size` ranks there are; `ranks` are those that are simulated, by default all. `starts` says how
    they begin if they are processes; no group is there then before the program asks for it.
    """

    def __init__(
        self,
        rt: Runtime,
        devices: Sequence[Sequence[int]],
        starts: Sequence[ProcessStart] | None = None,
        alike: Alike | None = None,
    ) -> None:
        self.rt, self.alike = rt, alike
        parent: Rank | None = getattr(here, "rank", None)
        self.library: LibraryAsImported = (
            LibraryAsImported() if parent is None else parent.world.library
        )
        self.devices = [tuple(of_rank) for of_rank in devices]
        self.size = len(devices) if alike is None else alike.size
        numbers = range(len(devices)) if alike is None else alike.simulated
        self.ranks = [
            Rank(self, index, number, None if starts is None else starts[index])
            for index, number in enumerate(numbers)
        ]
        leave = [rank.process.save for rank in self.ranks]
        enter = [rank.process.restore for rank in self.ranks]
        self.scheduler = RankScheduler(
            len(devices),
            rt.host_threads.lock,
            lambda rank: leave[rank](),
            lambda rank: enter[rank](),
        )
        self._rendezvous = {(WORLD, *range(self.size)): self._meeting(range(self.size))}
        self.stores = OpenStores()
        self.is_signalled = False  # ranks may have left what they were in the midst of
        self.scheduler.explain = self.explain_hang
        self.scheduler.gives_way = self._buffer_sends

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

    def call_before(self, number: int, flight: Flight) -> Flight | None:
        """What a rank has called before one of its calls."""
        return self.rank(number).flights.before(flight)

    def rank(self, number: int) -> Rank:
        """The simulated rank of that number."""
        return next(rank for rank in self.ranks if rank.number == number)

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
        left = [p for r in self._rendezvous.values() for p in r.open_collectives()]
        for pending in left:
            self.rt.host_threads.ask(pending.give_up, self.rt.clock)
        for pending in left:
            if pending.work is not None:
                self.rt.host_threads.ask(self.rt.clock.abandon, pending.work)
        if self.scheduler.ended or self.is_signalled:
            # What was under way is over, as with a process: no hazard any more.
            for device in {device for devices in self.devices for device in devices}:
                for stream in self.rt.order.streams_of(device):
                    self.rt.host_acquires(self.rt.order.release(stream))


class Rank:
    """A rank of a world: `number`, the numbers of its `devices`, and its own time and state.

    It is the `index`-th that is simulated. `device` is that of its last collective, at first the
    first of them; of a rank without any, or that shares it with another, the host.
    """

    def __init__(self, world: World, index: int, number: int, start: ProcessStart | None) -> None:
        self.world, self.index, self.number = world, index, number
        self.devices = world.devices[index]
        first = [devices[0] for devices in world.devices if devices]
        is_own = bool(self.devices) and first.count(self.devices[0]) == 1
        self.device = self.devices[0] if is_own else HOST
        self.is_process = start is not None
        self.has_parent = start is not None and start.has_parent
        if start is None:
            variables = variables_of(number, world.size, self.devices)
            start = ProcessStart(f"rank {number}", max(0, self.device), variables)
        self.current = start.current
        self.host_thread = HostThread(start.name, world.rt.now_s(), used=set())
        self.process = ProcessState(world.rt, start.states, world.library)
        self.process.set_variables(start.variables)
        if start.arguments is not None:
            self.process.begin_program(list(start.arguments))
        self.children: Any = None  # the outcome of the ranks that it has started and waits for
        self.handlers: dict[int, object] = {}  # of signals
        self.loggers: Loggers = {}
        self.exit_hooks: list[partial] = []  # what it calls at its end
        if not start.same_random_numbers:
            self.process.seed(number)
        self.groups = Groups()
        self.mark = next(_marks)  # unlike that of all other ranks
        self.made: Counter[str] = Counter()  # groups, by what their names begin with
        self.flights = flight_recorder.FlightRecorder()
        self.unwaited = UnwaitedCollectives(world.rt)
        self.watchdog = Watchdog(world.end_by_watchdog)
        self.host_thread.waits = self.watchdog.look
        self.is_over = False
        self.has_warned_of_tags = False
        self.talks_by_host = False  # whether what it exchanges now goes by the host in any group

    def store(self, name: str) -> RankStore:
        """The store of all ranks that has this name."""
        return RankStore(self.world.stores.at(name), here)

    def torchrun_s_store(self) -> TCPStore:
        """The store by which ranks would find one another that torchrun has started."""
        host, port = MASTER
        kept = self.world.stores.at(f"the TCPStore at port {port}")
        return TCPStore(kept, here, host, port)

    @property
    def is_alone(self) -> bool:
        """Whether its world has no other rank."""
        return self.world.size == 1

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
            self.index, ready, text, polite=polite, expires_s=expires_s
        )
        if report and expires_s is not None:
            self.host_thread.now_s = max(self.host_thread.now_s, expires_s)
        return report

    @property
    def at(self) -> str:
        """The device of its last collective, in words."""
        return "the host" if self.device == HOST else text(self.device)

    @property
    def devices_text(self) -> str:
        """Where it computes, in words."""
        return " and ".join(map(text, self.devices)) or "the host"

    def check(self, name: str, tensors: Sequence[torch.Tensor]) -> int | None:
        """The device of the tensors of a collective; None for the host.

        Without tensors, the device of the last collective. Raises RuntimeError for a rank that has
        ended, another machine and another device, and ValueError for non-contiguous tensors.
        """
        if self.is_over:
            raise RuntimeError(f"{name} in a process group of rank {self.number}, which {ENDED}")
        if current_runtime() is not self.world.rt:
            raise RuntimeError(
                f"{name} in a simulate() block of rank {self.number}: the ranks are on another "
                "machine; call run_ranks() inside the block"
            )
        indices = {t.vgpu_index if isinstance(t, VirtualTensor) else None for t in tensors}
        allowed = indices if self.is_alone else {*self.devices, None}
        if indices - allowed or len(indices) > 1:
            found = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
            raise RuntimeError(
                f"rank {self.number} works on {self.devices_text}, but {name} got tensors on "
                f"{found}: {self._remedy()}"
            )
        for tensor in tensors:
            if not _is_contiguous(tensor):
                raise ValueError(
                    f"Tensors must be contiguous: {name} on rank {self.number} got one of shape "
                    f"{list(tensor.shape)} with strides {tensor.stride()}: call .contiguous()"
                )
        found_on = indices.pop() if indices else self.device
        if found_on is None or found_on == HOST:
            return None
        self.device = found_on
        return found_on

    def _remedy(self) -> str:
        if self.device == HOST:
            return "it has no GPU; give run_ranks devices, or d2lpar run --gpus"
        return f"move them with .to('{text(self.device)}')"


@contextmanager
def talking_by_host() -> Iterator[None]:
    """Let hosts exchange objects in the block, in no time, also in a group of NCCL."""
    rank: Rank | None = getattr(here, "rank", None)
    if rank is None:  # a process of torch's own groups
        yield
        return
    before, rank.talks_by_host = rank.talks_by_host, True
    try:
        yield
    finally:
        rank.talks_by_host = before


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """In one of the orders that a tensor of its dimensions may have: NCCL takes channels last."""
    orders = {4: torch.channels_last, 5: torch.channels_last_3d}
    order = orders.get(tensor.dim(), torch.contiguous_format)
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=order)
