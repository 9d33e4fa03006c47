"""What a pipeline does: passes of micro-batches through stages."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from ...timeline.inputs import checked

FORWARD = "F"
BACKWARD = "B"  # both gradients at once: those of the inputs, and those of the weights
INPUTS = "I"  # the first part of a backward pass: gradients of the stage's inputs, to be sent on
WEIGHTS = "W"  # the second part, which nobody waits for
KINDS = (FORWARD, BACKWARD, INPUTS, WEIGHTS)

# Places of a table: ranks times slots, or stages times micro-batches. A million take seconds.
MOST_PLACES = 2**22


class Operation(NamedTuple):
    """One pass of one micro-batch through one stage; written as torch's pipelining does: "2F0"."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


def check_size(**sizes: int) -> None:
    """Raise ValueError, which names both sizes, for a table that would take for ever to fill."""
    places = prod(sizes.values())
    if places > MOST_PLACES:
        asked = " × ".join(f"{size} {name.replace('_', '-')}" for name, size in sizes.items())
        raise ValueError(
            f"a schedule of {asked} has {places} places, more than {MOST_PLACES}: take fewer ranks "
            "or micro-batches"
        )


Slot = tuple[Operation | None, ...]
"""What each rank does in one time slot; None: it idles."""

Orders = list[list[Operation]]
"""What each rank does, one after the other; `orders[rank]`."""


@checked
def orders(slots: Iterable[Slot]) -> Orders:
    """The operations of each rank in their order, without the idle slots."""
    return [[op for op in of_rank if op is not None] for of_rank in zip(*slots, strict=True)]


Key = tuple[str, int, int]
"""What waits for results: an operation, B standing for I too, since both wait for the same."""


def key(op: Operation) -> Key:
    """The name under which an operation waits for what it needs."""
    return (BACKWARD, op.stage, op.micro_batch) if op.kind == INPUTS else op


def feeds(op: Operation, last: int) -> list[Key]:
    """What waits for an operation, in a pipeline whose last stage is `last`.

    Activations go to the next stage, gradients to the one before; the last stage goes back by
    itself. Only forwards of stage 0 wait for nothing.
    """
    kind, stage, m = op
    if kind == FORWARD:
        return [(FORWARD, stage + 1, m) if stage < last else (BACKWARD, stage, m)]
    before = [(BACKWARD, stage - 1, m)] if stage and kind != WEIGHTS else []
    return [*before, (WEIGHTS, stage, m)] if kind == INPUTS else before


def waits(op: Operation) -> bool:
    """Whether an operation needs a result of another one."""
    return op.stage > 0 or op.kind != FORWARD
