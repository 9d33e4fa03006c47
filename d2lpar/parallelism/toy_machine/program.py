"""A rank's program: its verbs are written down, and played afterwards."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NoReturn

from .job import Job

WHATS = ("weights", "gradients")
MOST_ORDERS = 5000
ERROR_KIND = "{verb}: a {what} is a whole number, not {value!r}"
ERROR_RANGE = "{verb}: there is no {what} {value}: they are 0 to {last}"
ERROR_WHAT = 'all_gather("weights", layer) or all_gather("gradients", layer), not {what!r}'
ERROR_SELF = "{verb}: rank {rank} is this rank itself"
ERROR_MANY = "more than {most} verbs: is there a loop for ever?"


@dataclass(frozen=True)
class Order:
    """One verb of a program: its arguments, and the line of the program where it stands."""

    verb: str
    line: int
    layer: int = -1
    batch: int = -1
    what: str = ""
    peer: int = -1

    def __str__(self) -> str:
        said = {
            "all_gather": f'"{self.what}", {self.layer}',
            "reduce_scatter": f"{self.layer}", "update": f"{self.layer}", "free": f"{self.layer}",
            "send": f"{self.batch}, {self.peer}", "recv": f"{self.batch}, {self.peer}",
        }  # fmt: skip
        return f"{self.verb}({said.get(self.verb, f'{self.layer}, {self.batch}')})"


class Gpu:
    """A rank of the toy machine, as its program sees it.

    `rank` of `ranks`; `layers` and `batches` are this rank's own, `before` and `after` the
    neighbours, None at the ends. Verbs: `forward`, `backward`, `all_gather`, `reduce_scatter`,
    `send`, `recv`, `update` and `free`.
    """

    def __init__(self, rank: int, job: Job) -> None:
        self.rank, self.ranks = rank, job.ranks
        self.layers, self.batches = [*job.layers_of(rank)], [*job.batches_of(rank)]
        self.before = rank - 1 if rank > 0 else None
        self.after = rank + 1 if rank + 1 < job.ranks else None
        self.orders: list[Order] = []
        self._job = job

    def forward(self, layer: int, batch: int) -> None:
        """Take a batch through a layer, and keep its activation for the backward pass."""
        self._note("forward", layer=layer, batch=batch)

    def backward(self, layer: int, batch: int) -> None:
        """Add the batch's gradient to the layer's, and let the activation go."""
        self._note("backward", layer=layer, batch=batch)

    def all_gather(self, what: str, layer: int) -> None:
        """All ranks get the shards of all ranks: of a layer's "weights", or its "gradients".

        Raises ValueError for anything else.
        """
        if what not in WHATS:
            raise ValueError(ERROR_WHAT.format(what=what))
        self._note("all_gather", layer=layer, what=what)

    def reduce_scatter(self, layer: int) -> None:
        """Sum the ranks' gradients of a layer; each rank keeps its own shard of the sum."""
        self._note("reduce_scatter", layer=layer, what="gradients")

    def send(self, batch: int, to: int | None) -> None:
        """Send a rank what was computed last for a batch; to None: nothing."""
        if to is not None:
            self._note("send", batch=batch, peer=to)

    def recv(self, batch: int, source: int | None) -> None:
        """Wait for what a rank sends for a batch; from None: nothing."""
        if source is not None:
            self._note("recv", batch=batch, peer=source)

    def update(self, layer: int) -> None:
        """Let the optimizer change the weights, by the gradient, as far as its states are here."""
        self._note("update", layer=layer)

    def free(self, layer: int) -> None:
        """Of a layer's weights, keep this rank's shard only."""
        self._note("free", layer=layer)

    def _note(self, verb: str, *, what: str = "", **numbers: int) -> None:
        job = self._job
        most = {"layer": job.layers, "batch": job.batches, "peer": job.ranks}
        for name, value in numbers.items():
            told = "rank" if name == "peer" else name
            if type(value) is not int:
                raise TypeError(ERROR_KIND.format(verb=verb, what=told, value=value))
            if not 0 <= value < most[name]:
                self._no_such(verb, told, value, most[name] - 1)
        if numbers.get("peer") == self.rank:
            raise ValueError(ERROR_SELF.format(verb=verb, rank=self.rank))
        if len(self.orders) >= MOST_ORDERS:
            raise RuntimeError(ERROR_MANY.format(most=MOST_ORDERS))
        line = sys._getframe(2).f_lineno  # noqa: SLF001 (of the program that calls the verb)
        self.orders.append(Order(verb, line, what=what, **numbers))

    def _no_such(self, verb: str, what: str, value: int, last: int) -> NoReturn:
        raise ValueError(ERROR_RANGE.format(verb=verb, what=what, value=value, last=last))
