"""One virtual rank: its thread's identity, and what it shares with the others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from ...device_naming import text
from ...sim.clock import HostThread
from ...torch_backend.machine.host_threads import HOST
from ...torch_backend.machine.runtime import Runtime, current_runtime
from ...torch_backend.tensors.tensor import VirtualTensor
from ..calls import flight_recorder
from ..private.c10d import Groups
from ..private.dtensor import LibraryAsImported
from ..state.process_state import MASTER, OwnState, ProcessState, variables_of
from ..stores.virtual_stores import RankStore, TCPStore, open_file_store, open_tcp_store
from .alike import Alike
from .participants import Participant, Participants
from .rank_scheduler import RankScheduler
from .unwaited import UnwaitedCollectives

_marks = count()

# Of a group; torch's errors about one that it does not know show this, too.
ENDED = (
    "lasts as long as the call of run_ranks() that it was made in: make it, and what holds it, "
    "such as DistributedDataParallel, where it is used"
)


class Here(threading.local):
    """`rank`: the Rank whose thread this is, of a process that is one all of its threads';
    `started_by`: that which has started it, of other threads."""

    rank: Rank | None = None


here: Any = Here()


def belong_to(rank: Rank | None) -> None:
    """Let all threads of this process be that rank's, or no rank's; this one, whatever it was."""
    Here.rank = rank
    here.__dict__.pop("rank", None)


@dataclass(frozen=True)
class ProcessStart:
    """How a rank begins that is a process to its program: `current` is its current device.

    `variables` it finds in its environment besides those of who starts it; `states` are what else
    it has of its own.
    """

    name: str
    current: int
    variables: Mapping[str, str] = field(default_factory=dict)
    states: Sequence[OwnState] = ()


class World(Participants):
    """The ranks of one run as threads of this process: the machine, their devices, their groups.

    `size` ranks there are; `ranks` are those that are simulated, by default all. `starts` says how
    they begin if they are processes; no group is there then before the program asks for it.
    """

    ranks: list[Rank]

    def __init__(
        self,
        rt: Runtime,
        devices: Sequence[Sequence[int]],
        starts: Sequence[ProcessStart] | None = None,
        alike: Alike | None = None,
    ) -> None:
        parent: Rank | None = getattr(here, "rank", None)
        self.library: LibraryAsImported = (
            LibraryAsImported() if parent is None else parent.world.library
        )
        self.devices = [tuple(of_rank) for of_rank in devices]
        size = len(devices) if alike is None else alike.size
        numbers = range(len(devices)) if alike is None else alike.simulated
        scheduler = RankScheduler(
            len(devices),
            rt.host_threads.lock,
            lambda rank: self.ranks[rank].process.save(),
            lambda rank: self.ranks[rank].process.restore(),
        )
        super().__init__(rt, size, scheduler, alike)
        self.ranks = [
            Rank(self, index, number, None if starts is None else starts[index])
            for index, number in enumerate(numbers)
        ]

    def give_up(self) -> None:
        """Let the clock go on after an error, without those that will not come."""
        super().give_up()
        if self.scheduler.ended:
            # What was under way is over, as with a process: no hazard any more.
            for device in {device for devices in self.devices for device in devices}:
                for stream in self.rt.order.streams_of(device):
                    self.rt.host_acquires(self.rt.order.release(stream))


class Rank(Participant):
    """A rank of a world: `number`, the numbers of its `devices`, and its own time and state.

    It is the `index`-th that is simulated. `device` is that of its last collective, at first the
    first of them; of a rank without any, or that shares it with another, the host.
    """

    world: World

    def __init__(self, world: World, index: int, number: int, start: ProcessStart | None) -> None:
        self.devices = world.devices[index]
        first = [devices[0] for devices in world.devices if devices]
        is_own = bool(self.devices) and first.count(self.devices[0]) == 1
        self.device = self.devices[0] if is_own else HOST
        self.is_process = start is not None
        if start is None:
            variables = variables_of(number, world.size, self.devices)
            start = ProcessStart(f"rank {number}", max(0, self.device), variables)
        self.current = start.current
        self.world = world
        super().__init__(world, index, number, self._host(start))
        self.process = ProcessState(world.rt, start.states, world.library)
        self.process.set_variables(start.variables)
        self.groups = Groups()
        self.mark = next(_marks)  # unlike that of all other ranks
        self.made: Counter[str] = Counter()  # groups, by what their names begin with
        self.unwaited = UnwaitedCollectives(world.rt)
        self.is_over = False
        self.warned_of: set[str] = set()
        self.talks_by_host = False  # whether what it exchanges now goes by the host in any group

    def _host(self, start: ProcessStart) -> HostThread:
        return HostThread(start.name, self.world.rt.now_s(), used=set())

    def store(self, name: str) -> RankStore:
        """The store of all ranks that has this name."""
        return RankStore(self.world.stores.at(name), here)

    def torchrun_s_store(self) -> TCPStore:
        """The store by which ranks would find one another that torchrun has started."""
        host, port = MASTER
        kept = self.world.stores.at(f"the TCPStore at port {port}")
        return TCPStore(kept, here, host, port)

    def join(self, key: str, number: int, size: int) -> None:
        """Be the rank of that number: it is, from the start."""

    def open_tcp_store(self, **asked: Any) -> dist.Store:
        """A TCPStore, as `virtual_stores.open_tcp_store` opens it."""
        return open_tcp_store(here, **asked)

    def open_file_store(self, path: str) -> dist.Store:
        """A FileStore."""
        return open_file_store(here, path)

    def trace(self, *, active: bool) -> dict[str, Any]:
        """The dump of its flight recorder; `active`: of what is not completed only."""
        return flight_recorder.dumped(self.flights, self.host_thread.now_s, active=active)

    @property
    def is_alone(self) -> bool:
        """Whether its world has no other rank."""
        return self.world.size == 1

    @property
    def at(self) -> str:
        """The device of its last collective, in words."""
        return "the host" if self.device == HOST else text(self.device)

    @property
    def devices_text(self) -> str:
        """Where it computes, in words."""
        return " and ".join(map(text, self.devices)) or "the host"

    def check(
        self, name: str, tensors: Sequence[torch.Tensor], *, in_memory: bool = False
    ) -> int | None:
        """The device of the tensors of a collective; None for the host.

        Without tensors, the device of the last collective. Raises RuntimeError for a rank that has
        ended, another machine and another device, and ValueError for non-contiguous tensors, unless
        what is exchanged is what a GPU has `in_memory` there.
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
            elsewhere = (
                f"rank {self.number} works on {self.devices_text}, but {name} got tensors on"
            )
            several = f"{name} on rank {self.number} got tensors on more than one device,"
            which = elsewhere if indices - allowed else several
            raise RuntimeError(f"{which} {found}: {self._remedy()}")
        for tensor in tensors:
            if not is_contiguous(tensor) and not (in_memory and tensor.device.type != "cpu"):
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


def is_contiguous(tensor: torch.Tensor) -> bool:
    """In one of the orders that a tensor of its dimensions may have: NCCL takes channels last."""
    orders = {4: torch.channels_last, 5: torch.channels_last_3d}
    order = orders.get(tensor.dim(), torch.contiguous_format)
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=order)
