"""What memory the operations and blocks of a profile have taken on devices, as torch counts it.

An operation counts what it has allocated, less what was freed in it, and so does each call that has
made an empty tensor. A block counts all that has changed while it ran, and what has changed outside
of all of these is an event of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple

from ....timeline import Span
from ....timeline.intervals import union
from ...torch_backend.machine.op_details import OpDetails

BESIDE, EMPTY = "[memory]", "aten::empty"


class MemoryChange(NamedTuple):
    """What devices hold more (or less, below 0) from `time_s` on."""

    time_s: float
    host_thread: int | str
    nbytes: int
    name: str = BESIDE


class ProfiledMemory:
    """Of operations, in the order of their dispatches; `has` tells which devices count.

    `beside` are the changes between operations, `made` those by empty tensors, and `times_s` when
    there were any: just before what begins then.
    """

    def __init__(
        self, details: Iterable[tuple[Span, OpDetails]], has: Callable[[int], bool]
    ) -> None:
        self.beside: list[MemoryChange] = []
        self.made: list[MemoryChange] = []
        self._has = has
        self._taken: dict[int, int] = {}  # by the identity of the dispatch
        in_operations: list[MemoryChange] = []
        seen: set[int] = set()
        for span, of_op in details:
            if id(of_op) in seen:  # an operation may queue several things
                continue
            seen.add(id(of_op))
            self._note_before(span.start_s, span.stream, of_op)
            self._taken[id(span)] = taken = self._sum(of_op.taken.items())
            middle_s = (span.start_s + span.end_s) / 2
            in_operations.append(MemoryChange(middle_s, span.stream, taken))
        changes = sorted([*in_operations, *self.made, *self.beside], key=lambda c: c.time_s)
        self.times_s = {change.time_s for change in (*self.made, *self.beside)}
        self._times = [change.time_s for change in changes]
        self._sums = [0, *accumulate(change.nbytes for change in changes)]

    def of_operation(self, dispatch: Span) -> int:
        """Bytes that an operation has taken."""
        return self._taken.get(id(dispatch), 0)

    def within(self, block: Span) -> int:
        """Bytes that were taken while a block ran."""
        first = bisect_right(self._times, block.start_s)
        last = bisect_left(self._times, block.end_s)
        return self._sums[max(first, last)] - self._sums[first]

    def outside(self, blocks: Iterable[Span]) -> list[MemoryChange]:
        """What has changed in no operation and in no block."""
        covered = union(blocks)
        starts = [start_s for start_s, _ in covered]
        found = []
        for change in self.beside:
            number = bisect_left(starts, change.time_s) - 1
            if number < 0 or change.time_s >= covered[number][1]:
                found.append(change)
        return found

    def _note_before(self, time_s: float, host_thread: int | str, of_op: OpDetails) -> None:
        """Note what has changed before an operation, and since the one before it."""
        made = [nbytes for device, nbytes in of_op.made if self._has(device)]
        self.made += [MemoryChange(time_s, host_thread, nbytes, EMPTY) for nbytes in made]
        beside = self._sum(of_op.beside.items())
        if beside:
            self.beside.append(MemoryChange(time_s, host_thread, beside))

    def _sum(self, changes: Iterable[tuple[int, int]]) -> int:
        return sum(nbytes for device, nbytes in changes if self._has(device))
