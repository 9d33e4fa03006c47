"""Ranks that wait for one another for ever: in any case, or if sends and receives block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .findings import Finding, everywhere
from .operations import Key, Operation, Orders, feeds, key, waits


def stuck(orders: Orders, owners: Sequence[int]) -> list[Finding]:
    """Where ranks wait for one another, though all that is sent arrives at once."""
    last = len(owners) - 1
    fed: set[Key] = {op for order in orders for op in order if not waits(op)}
    at = [0] * len(orders)
    moving = True
    while moving:
        moving = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and key(order[at[rank]]) in fed:
                fed.update(feeds(order[at[rank]], last))
                at[rank] += 1
                moving = True
    heads = {r: order[at[r]] for r, order in enumerate(orders) if at[r] < len(order)}
    return [
        Finding(rank, at[rank], op, _why_stuck(orders, rank, op, at, last))
        for rank, op in heads.items()
    ]


def _why_stuck(orders: Orders, rank: int, op: Operation, at: Sequence[int], last: int) -> str:
    other, place, needed = next(
        found for found in everywhere(orders) if key(op) in feeds(found[2], last)
    )
    if other == rank:
        return f"needs {needed}, which comes at position {place}"
    return (
        f"needs {needed} of rank {other}, which itself waits before that, "
        f"at position {at[other]}, to do {orders[other][at[other]]}"
    )


_Message = tuple[int, int, Operation]  # from which rank to which, and whose result


@dataclass(frozen=True)
class _End:
    """One end of a transfer: a rank sends an operation's result to another, or receives it."""

    sends: bool
    result: Operation
    other: int
    position: int  # of the operation that made it, or that needs it

    def __str__(self) -> str:
        verb, preposition = ("sends", "to") if self.sends else ("receives", "from")
        return f"{verb} {self.result} {preposition} rank {self.other}"

    def message(self, rank: int) -> _Message:
        """The same for both ends; `rank` is that of this one."""
        ranks = (rank, self.other) if self.sends else (self.other, rank)
        return (*ranks, self.result)


_Ends = list[list[list[_End]]]  # of each rank, before or after each of its operations


def blocked(orders: Orders, owners: Sequence[int], ahead: int) -> list[Finding]:
    """Where ranks wait for one another if sends and receives block."""
    run = _Blocking(orders, owners, ahead)
    run.go()
    found = []
    for rank, order in enumerate(orders):
        if open_ends := run.open_ends(rank):
            first, other = open_ends[0], open_ends[0].other
            found.append(
                Finding(
                    rank,
                    first.position,
                    order[first.position],
                    f"waits for ever with blocking sends: {_doing(rank, open_ends)}, while "
                    f"{_doing(other, run.open_ends(other))}",
                )
            )
    return found


def _doing(rank: int, ends: list[_End]) -> str:
    return f"rank {rank} {' and '.join(map(str, ends))}"


class _Blocking:
    """Ranks that send and receive between two operations, and go on when that is done."""

    def __init__(self, orders: Orders, owners: Sequence[int], ahead: int) -> None:
        self.ahead = ahead
        self.at = [0] * len(orders)  # each rank's next operation
        self.sent: set[_Message] = set()  # whose sender is there, and maybe the receiver
        self.received: set[_Message] = set()
        self.sends, self.receives = _ends(orders, owners)

    def go(self) -> None:
        """Let all ranks go on as long as one can."""
        moving = True
        while moving:
            moving = False
            for rank, receives in enumerate(self.receives):
                while self.at[rank] <= len(receives) and not self.open_ends(rank):
                    self.at[rank] += 1
                    moving = True

    def open_ends(self, rank: int) -> list[_End]:
        """Begin what a rank sends and receives before its next operation; what is not done yet."""
        at = self.at[rank]
        if at > len(self.receives[rank]):
            return []
        out = self.sends[rank][at - 1] if at else []
        self.sent.update(end.message(rank) for end in out)
        open_ends = [end for end in out if end.message(rank) not in self.received]
        if open_ends and not self.ahead:
            return open_ends
        coming = self.receives[rank][at : at + max(1, self.ahead)]
        self.received.update(end.message(rank) for ends in coming for end in ends)
        needed = coming[0] if coming else []
        return open_ends + [end for end in needed if end.message(rank) not in self.sent]


def _ends(orders: Orders, owners: Sequence[int]) -> tuple[_Ends, _Ends]:
    """For each operation of each rank, where its result is sent; and where its needs come from."""
    last = len(owners) - 1
    made = {name: (rank, op) for rank, _, op in everywhere(orders) for name in feeds(op, last)}
    sends: _Ends = [[] for _ in orders]
    receives: _Ends = [[] for _ in orders]
    for rank, position, op in everywhere(orders):
        others = {owners[stage] for _, stage, _ in feeds(op, last)} - {rank}
        sends[rank].append([_End(True, op, other, position) for other in others])
        source, result = made[key(op)] if waits(op) else (rank, op)
        receives[rank].append([_End(False, result, source, position)] if source != rank else [])
    return sends, receives
