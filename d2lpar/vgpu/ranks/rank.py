"""One virtual rank: its thread's identity, and what it shares with the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from ..device_naming import text
from ..sim.clock import HostThread
from ..torch_backend.runtime import Runtime, current_runtime
from ..torch_backend.tensor import VirtualTensor
from .alike import Alike
from .c10d_private import Groups
from .process_state import ProcessState, variables_of
from .rank_scheduler import RankScheduler
from .rendezvous import Rendezvous

here = threading.local()  # .rank: the Rank whose thread this is


class World:
    """What the ranks of one run share: the machine, their devices, the scheduler, their groups.

    `size` ranks there are; `ranks` are those that are simulated, by default all.
    """

    def __init__(self, rt: Runtime, devices: Sequence[int], alike: Alike | None = None) -> None:
        self.rt, self.alike = rt, alike
        self.devices = list(devices)
        self.size = len(devices) if alike is None else alike.size
        numbers = range(len(devices)) if alike is None else alike.simulated
        self.ranks = [Rank(self, index, number) for index, number in enumerate(numbers)]
        leave = [rank.process.save for rank in self.ranks]
        enter = [rank.process.restore for rank in self.ranks]
        self.scheduler = RankScheduler(
            len(devices),
            rt.host_threads.lock,
            lambda rank: leave[rank](),
            lambda rank: enter[rank](),
        )
        self._rendezvous = [self._meeting(range(self.size))]

    def _meeting(self, ranks: Sequence[int]) -> Rendezvous:
        if self.alike is None:
            return Rendezvous(ranks, [self.devices[r] for r in ranks], self.rt.machine)
        self.alike.check(ranks)
        return Rendezvous(ranks, ranks, self.alike.machine, self.alike)

    def rendezvous(self, number: int, ranks: Sequence[int]) -> Rendezvous:
        """The group that each rank makes as its `number`-th; 0 is that of all ranks.

        Raises RuntimeError if another rank has made another group.
        """
        if number == len(self._rendezvous):
            self._rendezvous.append(self._meeting(ranks))
        rendezvous = self._rendezvous[number]
        if rendezvous.ranks != list(ranks):
            raise RuntimeError(
                f"group {number} is of ranks {list(ranks)} here and of {rendezvous.ranks} on "
                "another rank: all ranks must call new_group in the same order with the same ranks"
            )
        return rendezvous

    def give_up(self) -> None:
        """Let the clock go on after an error, without those that will not come."""
        for rendezvous in self._rendezvous:
            for pending in rendezvous.open_collectives():
                self.rt.host_threads.ask(pending.give_up, self.rt.clock)
        if (
            self.scheduler.ended
        ):  # what was under way is over, as with a process: no hazard any more
            for device in self.devices:
                for stream in self.rt.order.streams_of(device):
                    self.rt.host_acquires(self.rt.order.release(stream))


class Rank:
    """A rank of a world: `number`, the number of its `device`, and its own time and state.

    It is the `index`-th that is simulated.
    """

    def __init__(self, world: World, index: int, number: int) -> None:
        self.world, self.index, self.number = world, index, number
        self.device = world.devices[index]
        self.host_thread = HostThread(f"rank {number}", world.rt.now_s())
        variables = variables_of(number, world.size, self.device)
        self.process = ProcessState(world.rt, variables)
        self.groups = Groups()
        self.made = 0  # groups, besides that of all ranks

    def wait(self, ready: Callable[[], bool], text: str, *, polite: bool = False) -> None:
        """Let other ranks run until `ready()`."""
        self.world.scheduler.wait(self.index, ready, text, polite=polite)

    def check(self, name: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors of a collective are on the host, and not on the rank's device.

        Raises RuntimeError for another machine, another device, and non-contiguous tensors.
        """
        if current_runtime() is not self.world.rt:
            raise RuntimeError(
                f"{name} in a simulate() block of rank {self.number}: the ranks are on another "
                "machine; call run_ranks() inside the block"
            )
        places = {t.vgpu_index if isinstance(t, VirtualTensor) else None for t in tensors}
        if places - {self.device, None} or len(places) > 1:
            found = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
            raise RuntimeError(
                f"rank {self.number} works on {text(self.device)}, but {name} got tensors on "
                f"{found}: move them with .to('{text(self.device)}')"
            )
        for tensor in tensors:
            if not tensor.is_contiguous():
                raise RuntimeError(
                    f"{name} on rank {self.number} needs contiguous tensors, not one with strides "
                    f"{tensor.stride()}: call .contiguous()"
                )
        return None in places
