"""Ranks that are alike: of each kind one is simulated, and stands for the others.

Ranks of a kind run the same program with the same shapes; who calls says which do. Then their
hosts and devices do the same at the same time, unless some meet others on a link. So it is checked
that no group without a simulated rank uses a port of a simulated rank: what that rank meets there,
is there. Groups have their full size, and cost what they cost on the whole machine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ....machines import Machine
from ...sim.copy_routes import Port, hops
from .cost import ports_of

_SENDS, _TAKES = ("out", "up"), ("in", "down")  # how the names of ports end, by direction

Key = Callable[[int], Hashable]
Call = TypeVar("Call")


def one_kind(rank: int) -> Hashable:
    """All ranks are alike."""
    return None


class Alike:
    """The kinds of the ranks of a machine, one for each accelerator; `simulated` are the first of
    each."""

    def __init__(self, machine: Machine, kind: Key) -> None:
        self.machine = machine
        self.size = len(machine.accelerators)
        self.kinds = [kind(rank) for rank in range(self.size)]
        first: dict[Hashable, int] = {}
        for rank, each in enumerate(self.kinds):
            first.setdefault(each, rank)
        self.simulated = list(first.values())
        self._near: dict[Port, int] = {}  # ports of simulated ranks, and whose
        self._far: dict[Port, Sequence[int]] = {}  # of groups without one, and which

    def simulated_machine(self) -> Machine:
        """The accelerators of the simulated ranks, in the places that they have on the whole."""
        whole = self.machine
        return replace(
            whole,
            accelerators=tuple(whole.accelerators[rank] for rank in self.simulated),
            node_size=whole.node_size or self.size,
            slots=tuple(self.simulated),
        )

    def present(self, ranks: Sequence[int]) -> list[int]:
        """Which members of a group are simulated."""
        simulated = set(self.simulated)
        return [member for member, rank in enumerate(ranks) if rank in simulated]

    def with_stand_ins(self, ranks: Sequence[int], calls: Mapping[int, Call]) -> dict[int, Call]:
        """The calls of all members: of those that are not simulated, what one of their kind does.

        ValueError for a kind of which the group has no simulated rank.
        """
        by_kind = {self.kinds[ranks[member]]: call for member, call in calls.items()}
        found = {}
        for member, rank in enumerate(ranks):
            if self.kinds[rank] not in by_kind:
                raise ValueError(
                    f"a collective of ranks {_listed(ranks)} has no simulated rank of kind "
                    f"{self.kinds[rank]!r}, that of rank {rank}: let the first ranks of the kinds "
                    "that work together be in one group"
                )
            found[member] = calls.get(member, by_kind[self.kinds[rank]])
        return found

    def check_send(self, source: int, target: int) -> None:
        """ValueError for a send between ranks of which one is not simulated."""
        for rank in (source, target):
            if rank not in self.simulated:
                first = self.kinds.index(self.kinds[rank])
                raise ValueError(
                    f"rank {source} sends to rank {target}, and rank {rank} is not simulated, as "
                    f"it is like rank {first}: let `alike` tell them apart"
                )

    def check(self, ranks: Sequence[int]) -> None:
        """Take note of a group. ValueError if ranks of a kind are in places that are not alike."""
        if len(ranks) < 2:
            return
        members = self.present(ranks)
        if not members:
            self._far |= dict.fromkeys(ports_of(self.machine, ranks), ranks)
        for member in members:
            self._near |= dict.fromkeys(self._ports_at(ranks, member), ranks[member])
        for port in self._near.keys() & self._far.keys():
            raise ValueError(
                f"ranks {_listed(self._far[port])} share a link with rank {self._near[port]} and "
                "none of them is simulated, so that they would not be in each other's way: let "
                "`alike` tell them apart, or simulate all with run_ranks()"
            )

    def _ports_at(self, ranks: Sequence[int], member: int) -> list[Port]:
        """The ports on a member's own side that its part of the group's ring uses."""
        me, after = ranks[member], ranks[(member + 1) % len(ranks)]
        sent = [p for hop in hops(self.machine, me, after) for p in hop.ports]
        taken = [p for hop in hops(self.machine, ranks[member - 1], me) for p in hop.ports]
        return [p for p in sent if p[0].endswith(_SENDS)] + [
            p for p in taken if p[0].endswith(_TAKES)
        ]


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    return shown if len(ranks) <= 4 else f"{shown}, … ({len(ranks)} in all)"
