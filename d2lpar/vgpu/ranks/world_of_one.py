"""A process that becomes a rank without others, in its own thread: a group of one.

Notebooks make such a group to try on one GPU what they are to run on many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..races.call_sites import CallSite
from ..torch_backend.machine.runtime import current_runtime
from .state.process_state import OwnState
from .torch_names import names_of_torch
from .world.rank import ProcessStart, Rank, World, here
from .world.rank_scheduler import RankScheduler, Words


class _NobodyElse(RankScheduler):
    """That of one thread, which always has the turn: what it waits for is there, or never comes."""

    def wait(
        self,
        rank: int,
        ready: Callable[[], bool],
        text: Words,
        *,
        polite: bool = False,
        expires_s: float | None = None,
        place: CallSite | None = None,
        called: Callable[[], bool] = lambda: False,
    ) -> str:
        """Nothing if it is there. Else what a wait that expires has to say, or RuntimeError."""
        if ready():
            return ""
        report = (
            f"this process waits in {text if isinstance(text, str) else text()} for others, and is "
            "the only one of its group: start ranks with `d2lpar run --nproc-per-node N SCRIPT`, "
            "d2lpar.run_ranks or torch.multiprocessing.spawn"
        )
        if expires_s is None:
            raise RuntimeError(report)
        return report


def _stay(rank: int) -> None:
    """The turn does not pass to another."""


@contextmanager
def alone_in_its_world(devices: Sequence[int], states: Sequence[OwnState]) -> Iterator[Rank]:
    """In the block the thread is the only rank of a world, and a process to its program.

    `devices` are those that it sees, `states` what else it has of its own. Its host is the one of
    the program's main thread, so that time goes on.
    """
    rt = current_runtime()
    world = World(rt, [devices], [ProcessStart("main", rt.current_device, states=states)])
    world.scheduler = _NobodyElse(1, rt.host_threads.lock, _stay, _stay)
    (rank,) = world.ranks
    rank.host_thread = rt.clock.host
    with names_of_torch():
        here.rank = rank
        try:
            yield rank
        finally:
            rank.groups.remove_all()
            rank.unwaited.close()
            rank.is_over = True
            here.rank = None
