"""`mpi4py.MPI.COMM_WORLD` on virtual ranks: who one is, and objects that all exchange.

For MPI the ranks are one process, so that its own world has one member in each of them. Programs
ask it for rank and size, and let it tell all where they meet; tensors go by torch.distributed.
"""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from .rank import Rank, here

MODULE = "mpi4py.MPI"


def replace_world(module: Any) -> None:
    """Let the module's world be that of the virtual rank that asks for it."""
    if not isinstance(module.COMM_WORLD, MpiWorld):
        module.COMM_WORLD = MpiWorld(module.COMM_WORLD)


class MpiWorld:
    """MPI's world, or that of the virtual rank whose thread asks: methods are those of mpi4py that
    take Python objects. Others raise NotImplementedError there."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def __getattr__(self, name: str) -> Any:
        rank: Rank | None = getattr(here, "rank", None)
        if rank is None or rank.is_alone:
            return getattr(self.theirs, name)
        found = getattr(_Communicator(rank), name, None)
        if found is None:
            raise NotImplementedError(
                f"{MODULE}.COMM_WORLD.{name} is not available on virtual ranks, which are threads "
                "of one process: use torch.distributed there, or start real processes with mpiexec"
            )
        return found


class _Communicator:
    """What a rank says of its world, and exchanges with it by a store."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.size = rank.number, rank.world.size
        self._rank = rank

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def allgather(self, sendobj: object) -> list[Any]:
        """The objects of all ranks, in their order."""
        turn = self._turn()
        self._put(turn, self.rank, sendobj)
        return [self._take(turn, rank) for rank in range(self.size)]

    def gather(self, sendobj: object, root: int = 0) -> list[Any] | None:
        """The same for `root`; None for the others."""
        found = self.allgather(sendobj)
        return found if self.rank == root else None

    def bcast(self, obj: object, root: int = 0) -> Any:
        """The object of `root`."""
        turn = self._turn()
        if self.rank == root:
            self._put(turn, root, obj)
        return self._take(turn, root)

    def scatter(self, sendobj: Sequence[object] | None, root: int = 0) -> Any:
        """The object that `root` has for this rank."""
        turn = self._turn()
        if self.rank == root:
            if sendobj is None or len(sendobj) != self.size:
                raise ValueError(f"scatter needs {self.size} objects, one for each rank")
            for rank, one in enumerate(sendobj):
                self._put(turn, rank, one)
        return self._take(turn, self.rank)

    def allreduce(self, sendobj: object, op: Callable[[Any, Any], Any] = operator.add) -> Any:
        """The objects of all ranks, taken together by `op`, such as `MPI.MAX`."""
        return functools.reduce(op, self.allgather(sendobj))

    def reduce(
        self, sendobj: object, op: Callable[[Any, Any], Any] = operator.add, root: int = 0
    ) -> Any:
        """The same for `root`; None for the others."""
        found = self.allreduce(sendobj, op)
        return found if self.rank == root else None

    def barrier(self) -> None:
        """Wait for all."""
        self.allgather(None)

    Barrier = barrier

    def _turn(self) -> int:
        """Which exchange this is: all ranks make them in the same order."""
        self._rank.made[MODULE] += 1
        return self._rank.made[MODULE]

    def _put(self, turn: int, rank: int, thing: object) -> None:
        self._store.set(f"{turn}/{rank}", pickle.dumps(thing))

    def _take(self, turn: int, rank: int) -> Any:
        return pickle.loads(self._store.get(f"{turn}/{rank}"))

    @property
    def _store(self) -> Any:
        return self._rank.store(MODULE)
