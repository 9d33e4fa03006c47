"""What is wrong with a schedule, and where: passes missing or early, deadlocks, too much memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .operations import (
    BACKWARD,
    FORWARD,
    INPUTS,
    KINDS,
    WEIGHTS,
    Key,
    Operation,
    Orders,
    Slot,
    feeds,
    key,
    waits,
)
from .operations import orders as orders_of


@dataclass(frozen=True)
class Finding:
    """Something wrong at `orders[rank][position]`, an operation; None: what should be there is not.

    As text it is one sentence: "rank 2, position 0: 2F4 is of no micro-batch: they are 0 to 3".
    """

    rank: int
    position: int | None
    operation: Operation
    problem: str

    def __str__(self) -> str:
        place = "" if self.position is None else f", position {self.position}"
        return f"rank {self.rank}{place}: {self.operation} {self.problem}"


class ScheduleError(ValueError):
    """A schedule that cannot be run, or not as it was asked for; `findings` say why."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, findings)))


def check(
    orders: Orders,
    *,
    stages: int,
    micro_batches: int,
    owners: Sequence[int] | None = None,
    most_in_flight: int | Sequence[int] | None = None,
    receives_ahead: int | None = 2,
) -> list[Finding]:
    """What is wrong with the orders of ranks; nothing if they can be run.

    1. Each micro-batch goes through each stage once: one F, and one B or one I and one W, on the
       rank that owns the stage: `owners[stage]` (None: `stage % len(orders)`).
    2. B and I come after the F of their stage, W after its I.
    3. Nobody waits for ever: F needs that of the stage before, B and I need that of the next stage.
    4. Nor does anybody with blocking sends. Between two operations a rank sends the result of the
       first, if another rank needs it, and meanwhile receives what the next `receives_ahead`
       operations need; it goes on when its result was received, and what the next one needs is
       there. 2 is what Megatron-LM's exchanges do, `send_forward_backward_recv_forward_backward`
       of interleaved schedules; 1 (`send_forward_recv_backward`) is enough for 1F1B, and 0, where
       a rank first sends and then receives, for GPipe. None: sends do not block.
    5. `in_flight(orders)` is `most_in_flight` at most, one number for all ranks or one for each.

    Orders are looked at for 3 once 1 and 2 are right, and for 4 once 3 is.
    """
    owners = [s % len(orders) for s in range(stages)] if owners is None else owners
    findings = [*_strange(orders, stages, micro_batches, owners), *_early(orders)]
    findings += _counted(orders, stages, micro_batches, owners)
    if not findings:
        findings += _stuck(orders, owners)
    if not findings and receives_ahead is not None:
        findings += _blocked(orders, owners, receives_ahead)
    if most_in_flight is not None:
        findings += _crowded(orders, most_in_flight)
    return findings


def require(orders: Orders, **options: object) -> None:
    """Raise `ScheduleError` with everything that `check`, whose options these are, finds."""
    if findings := check(orders, **options):
        raise ScheduleError(findings)


def check_slots(slots: Iterable[Slot], **options: object) -> list[Finding]:
    """What is wrong with a table of time slots: with its orders, which `check` looks at first.

    If these are right, what an operation needs must be done in an earlier slot. Positions are slots
    then. The options are those of `check`.
    """
    table = list(slots)
    ranks = {len(slot) for slot in table}
    if len(ranks) > 1:
        raise ValueError(f"all slots must have one entry a rank, not {sorted(ranks)} entries")
    found = check(orders_of(table), **options)
    return found or list(_early_in(table, options["stages"]))


def in_flight(orders: Orders) -> list[int]:
    """How many micro-batches each rank holds activations of, at most: from F to B, or to W."""
    return [max(accumulate(map(_held, order)), default=0) for order in orders]


def _held(op: Operation) -> int:
    return {FORWARD: 1, BACKWARD: -1, WEIGHTS: -1}.get(op.kind, 0)


# --- passes ---------------------------------------------------------------------------------------


def _everywhere(orders: Orders) -> Iterator[tuple[int, int, Operation]]:
    for rank, order in enumerate(orders):
        for position, op in enumerate(order):
            yield rank, position, op


def _strange(
    orders: Orders, stages: int, micro_batches: int, owners: Sequence[int]
) -> Iterator[Finding]:
    """Operations that nobody asked for, and those on the wrong rank."""
    for rank, position, op in _everywhere(orders):
        if op.kind not in KINDS:
            problem = f"is of no kind: these are {', '.join(KINDS)}"
        elif not 0 <= op.stage < stages:
            problem = f"is of no stage: they are 0 to {stages - 1}"
        elif not 0 <= op.micro_batch < micro_batches:
            problem = f"is of no micro-batch: they are 0 to {micro_batches - 1}"
        elif owners[op.stage] != rank:
            problem = f"belongs on rank {owners[op.stage]}, which owns stage {op.stage}"
        else:
            continue
        yield Finding(rank, position, op, problem)


def _counted(
    orders: Orders, stages: int, micro_batches: int, owners: Sequence[int]
) -> Iterator[Finding]:
    """Operations that are missing, and those that come again."""
    first: dict[Operation, tuple[int, int]] = {}
    for rank, position, op in _everywhere(orders):
        if op in first:
            where = "rank {}, position {}".format(*first[op])
            yield Finding(rank, position, op, f"was done before: {where}")
        first.setdefault(op, (rank, position))
    for stage in range(stages):
        for m in range(micro_batches):
            forward, whole, inputs, weights = (Operation(kind, stage, m) for kind in KINDS)
            if forward not in first:
                yield Finding(owners[stage], None, forward, "is missing")
            if whole in first:
                for part in {inputs, weights} & first.keys():
                    yield Finding(*first[part], part, f"is a part of {whole}, which is there, too")
            elif first.keys().isdisjoint((inputs, weights)):
                problem = f"is missing: neither it nor {inputs} and {weights} are there"
                yield Finding(owners[stage], None, whole, problem)
            else:
                for part, other in ((inputs, weights), (weights, inputs)):
                    if part not in first:
                        yield Finding(owners[stage], None, part, f"is missing: {other} is there")


def _early(orders: Orders) -> Iterator[Finding]:
    """What comes before the pass of the same stage that it needs, if that comes at all."""
    for rank, order in enumerate(orders):
        places = {op: position for position, op in reversed([*enumerate(order)])}
        for position, op in enumerate(order):
            needed = (INPUTS if op.kind == WEIGHTS else FORWARD, op.stage, op.micro_batch)
            if places.get(needed, -1) > position:
                problem = f"needs {Operation(*needed)}, which comes at position {places[needed]}"
                yield Finding(rank, position, op, problem)


def _early_in(table: Sequence[Slot], stages: int) -> Iterator[Finding]:
    fed: set[Key] = set()
    for number, slot in enumerate(table):
        for rank, op in enumerate(slot):
            if op is not None and waits(op) and key(op) not in fed:
                problem = "is too early: what it needs is not done in an earlier slot"
                yield Finding(rank, number, op, problem)
        fed.update(name for op in slot if op for name in feeds(op, stages - 1))


def _crowded(orders: Orders, most: int | Sequence[int]) -> Iterator[Finding]:
    """The first forward of each rank that is one too many."""
    for rank, order in enumerate(orders):
        allowed = most if isinstance(most, int) else most[rank]
        held = list(accumulate(map(_held, order)))
        position = next((i for i, count in enumerate(held) if count > allowed), None)
        if position is not None:
            problem = (
                f"is micro-batch number {held[position]} in flight, and {allowed} may be: "
                "a backward pass must come first"
            )
            yield Finding(rank, position, order[position], problem)


# --- waiting --------------------------------------------------------------------------------------


def _stuck(orders: Orders, owners: Sequence[int]) -> list[Finding]:
    """Where ranks wait for one another, though all that is sent arrives at once."""
    last = len(owners) - 1
    fed = {op for order in orders for op in order if not waits(op)}
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
        found for found in _everywhere(orders) if key(op) in feeds(found[2], last)
    )
    if other == rank:
        return f"needs {needed}, which comes at position {place}"
    return (
        f"needs {needed} of rank {other}, which itself waits before that, "
        f"at position {at[other]}, to do {orders[other][at[other]]}"
    )


@dataclass(frozen=True)
class _End:
    """One end of a transfer: a rank sends an operation's result to another, or receives it."""

    sends: bool
    result: Operation
    other: int
    position: int  # of the operation that made it, or that needs it

    def __str__(self) -> str:
        verb, way = ("sends", "to") if self.sends else ("receives", "from")
        return f"{verb} {self.result} {way} rank {self.other}"

    def way(self, rank: int) -> tuple[int, int, Operation]:
        """The same for both ends; `rank` is that of this one."""
        ranks = (rank, self.other) if self.sends else (self.other, rank)
        return (*ranks, self.result)


def _blocked(orders: Orders, owners: Sequence[int], ahead: int) -> list[Finding]:
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
        self.sent: set[tuple] = set()  # ways whose sender is there, and maybe the receiver
        self.received: set[tuple] = set()
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
        self.sent.update(end.way(rank) for end in out)
        open_ends = [end for end in out if end.way(rank) not in self.received]
        if open_ends and not self.ahead:
            return open_ends
        coming = self.receives[rank][at : at + max(1, self.ahead)]
        self.received.update(end.way(rank) for ends in coming for end in ends)
        needed = coming[0] if coming else []
        return open_ends + [end for end in needed if end.way(rank) not in self.sent]


def _ends(orders: Orders, owners: Sequence[int]) -> tuple[list, list]:
    """For each operation of each rank, where its result is sent; and where its needs come from."""
    last = len(owners) - 1
    made = {name: (rank, op) for rank, _, op in _everywhere(orders) for name in feeds(op, last)}
    sends: list[list[list[_End]]] = [[] for _ in orders]
    receives: list[list[list[_End]]] = [[] for _ in orders]
    for rank, position, op in _everywhere(orders):
        others = {owners[stage] for _, stage, _ in feeds(op, last)} - {rank}
        sends[rank].append([_End(True, op, other, position) for other in others])
        source, result = made[key(op)] if waits(op) else (rank, op)
        receives[rank].append([_End(False, result, source, position)] if source != rank else [])
    return sends, receives
