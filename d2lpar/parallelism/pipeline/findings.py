"""What checks of schedules find: something wrong, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .operations import Operation, Orders


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


def everywhere(orders: Orders) -> Iterator[tuple[int, int, Operation]]:
    """All operations, each after its rank and its position there."""
    for rank, order in enumerate(orders):
        for position, op in enumerate(order):
            yield rank, position, op
