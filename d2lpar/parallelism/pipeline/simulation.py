"""A schedule on a machine: how long a step takes, how long ranks idle, what they hold, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...machines import Link, Machine, machine
from ...timeline import MemorySample, Span, Timeline
from ...timeline.inputs import NotNegative, checked
from ...vgpu.sim.copy_routes import Hop, route
from ...vgpu.sim.staging import transfers
from .conformance import require
from .costs import StageCost
from .operations import BACKWARD, FORWARD, INPUTS, KINDS, WEIGHTS, Operation, Orders, feeds, waits
from .simulator import Simulator

AGAIN = "R"  # a forward pass that is computed again, in names of spans

PassSpan = tuple[str, int, int, float, float]
"""Kind (`AGAIN` among them), stage, micro-batch, start and end in seconds."""


@checked
def simulate(
    orders: Orders,
    costs: Sequence[StageCost],
    link: Machine | Link | str | None = None,
    *,
    recompute: bool | Callable[[Operation], bool] = False,
    handover_s: NotNegative = 0.0,
) -> Timeline:
    """The timeline of a step: `orders[rank]` on ranks whose stages cost `costs[stage]`.

    A rank does its operations in order, each as soon as what it needs is there, and sends beside
    its computing. `link` is the machine whose accelerators the ranks are (or its name), or a link
    that joins any two of them, each with a port out and a port in; copies contend for ports, as
    those of virtual GPUs do. None: sending takes no time. `handover_s` passes, beside that, before
    a result leaves for another rank.

    `recompute` says which backward operations compute their forward pass again: all, none, or those
    for which it is true. Their forward leaves nothing in memory but its input, and comes again
    while the rank waits for the gradient; where it is begun only then, add `forward_s` to
    `backward_s` instead.

    Rank r is the device "vgpu:r". Operations are spans of kind "compute" named "2F0", "2R0" if
    computed again; what is sent, of kind "copy". Samples of memory are parameters and activations;
    the first stage's own input, and what is on its way, are not counted.

    Raises `ScheduleError` for orders that are incomplete or cannot be run, ValueError for costs of
    another number of stages and a machine with too few accelerators.
    """
    return Simulation.of(orders, costs, link, recompute=recompute, handover_s=handover_s).timeline()


@dataclass(frozen=True)
class Simulation:
    """A simulated step in figures; for many of them, as it makes no spans: see `simulate`."""

    clock: str
    _run: Simulator

    @classmethod
    def of(
        cls,
        orders: Orders,
        costs: Sequence[StageCost],
        link: Machine | Link | str | None = None,
        *,
        recompute: bool | Callable[[Operation], bool] = False,
        handover_s: NotNegative = 0.0,
    ) -> Simulation:
        """What `simulate` makes a timeline of; arguments and errors are the same."""
        link = machine(link) if isinstance(link, str) else link
        owners = _owners(orders, len(costs))
        again = set()
        if recompute:
            chosen = recompute if callable(recompute) else lambda _: True
            backwards = [op for o in orders for op in o if op.kind in (BACKWARD, INPUTS)]
            again = {(op.stage, op.micro_batch) for op in backwards if chosen(op)}
        run = Simulator(orders, costs, owners, _routes(link, owners), handover_s, again)
        if not (_is_placed(orders, owners) and run.run()):
            micro_batches = 1 + max(op.micro_batch for order in orders for op in order)
            require(orders, stages=len(costs), micro_batches=micro_batches, owners=owners)
        return cls(f"simulated on {link.name}" if isinstance(link, Machine) else "simulated", run)

    @property
    def step_s(self) -> float:
        """Seconds until the last operation ends."""
        return max(ends_s[-1] for ends_s in self._run.ends_s if ends_s)

    @property
    def busy_s(self) -> list[float]:
        """Seconds in which each rank computes, forward passes that come again included."""
        return [sum(p[4] - p[3] for p in self._passes(rank)) for rank in self._ranks]

    @property
    def bubble(self) -> float:
        """Share of the step in which ranks do not compute, their mean; 0 to 1."""
        return 1 - sum(self.busy_s) / (len(self._ranks) * self.step_s)

    @property
    def peak_bytes(self) -> list[int]:
        """The most that parameters and activations occupy on each rank."""
        return [max(nbytes for _, nbytes in self._held(rank)) for rank in self._ranks]

    def timeline(self) -> Timeline:
        """The same as spans, which are made when they are first looked at."""
        return _LaterTimeline(self)

    @property
    def _ranks(self) -> range:
        return range(len(self._run.orders))

    def _passes(self, rank: int) -> Iterator[PassSpan]:
        """What a rank computes, in order."""
        run, free_s = self._run, 0.0
        times = zip(run.orders[rank], run.starts_s[rank], run.ends_s[rank], strict=True)
        for (kind, stage, m), start_s, end_s in times:
            if kind in (BACKWARD, INPUTS) and (stage, m) in run.again:
                yield AGAIN, stage, m, free_s, free_s + run.costs[stage].forward_s
            yield kind, stage, m, start_s, end_s
            free_s = end_s

    def _held(self, rank: int) -> Iterator[tuple[float, int]]:
        """From when on parameters and activations occupy how many bytes."""
        run, costs = self._run, self._run.costs
        held = sum(c.parameter_bytes for c, r in zip(costs, run.owners, strict=True) if r == rank)
        yield 0.0, held
        for kind, stage, m, start_s, end_s in self._passes(rank):
            whole = costs[stage].activation_bytes
            kept = whole
            if (stage, m) in run.again:
                kept = costs[stage - 1].sent_bytes if stage else 0
            if kind != INPUTS:
                held += {FORWARD: kept, AGAIN: whole - kept, BACKWARD: -whole, WEIGHTS: -whole}[
                    kind
                ]
                yield (start_s if kind in (FORWARD, AGAIN) else end_s), held

    def spans(self) -> list[Span]:
        """Passes, and copies, hop by hop: see `simulate`."""
        computing = [
            Span(f"vgpu:{rank}", 0, "compute", f"{stage}{kind}{m}", start_s, end_s)
            for rank in self._ranks
            for kind, stage, m, start_s, end_s in self._passes(rank)
        ]
        return computing + [span for rank in self._ranks for span in self._copies(rank)]

    def _copies(self, rank: int) -> Iterator[Span]:
        """What a rank sends, hop by hop."""
        run, last = self._run, len(self._run.costs) - 1
        starts_s = iter(run.sent_s[rank])
        for op in run.orders[rank]:
            for _, other, _ in feeds(op, last):
                nbytes = run.costs[min(op.stage, other)].sent_bytes
                for sent in transfers(run.routes.get((op.stage, other), ()), nbytes):
                    start_s = next(starts_s)
                    yield Span(
                        f"vgpu:{rank}",
                        f"to vgpu:{run.owners[other]}",
                        "copy",
                        f"send {op}",
                        start_s,
                        start_s + sent.seconds,
                        sent.bytes,
                        target="host" if sent.target is None else f"vgpu:{sent.target}",
                    )

    def samples(self) -> list[MemorySample]:
        """What parameters and activations occupy on each rank."""
        return [
            MemorySample(f"vgpu:{rank}", time_s, nbytes)
            for rank in self._ranks
            for time_s, nbytes in self._held(rank)
        ]


class _LaterTimeline(Timeline):
    """A timeline that asks for its spans and samples when they are first looked at."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation.clock)
        del self.spans, self.memory
        self._makers = {"spans": simulation.spans, "memory": simulation.samples}

    def __getattr__(self, name: str) -> list:
        make = vars(self).get("_makers", {}).get(name)
        if make is None:
            raise AttributeError(f"a timeline has no attribute {name!r}", name=name, obj=self)
        setattr(self, name, make())
        return getattr(self, name)


def _owners(orders: Orders, stages: int) -> list[int]:
    """The rank of each stage: the one that does most of it."""
    done = Counter((op.stage, rank) for rank, order in enumerate(orders) for op in order)
    count = 1 + max((stage for stage, _ in done), default=-1)
    if count != stages or not stages:
        raise ValueError(f"the orders have {count} stages and there are costs of {stages}")
    ranks = range(len(orders))
    return [max(ranks, key=lambda rank: done[stage, rank]) for stage in range(stages)]


def _routes(link: Machine | Link | None, owners: Sequence[int]) -> dict[tuple[int, int], list[Hop]]:
    """How what a stage hands on travels to its neighbours, by (stage, stage).

    Raises ValueError if the machine has fewer accelerators than there are ranks.
    """
    ranks = 1 + max(owners)
    if isinstance(link, Machine) and len(link.accelerators) < ranks:
        raise ValueError(
            f"{link.name} has {len(link.accelerators)} accelerators, and the schedule {ranks} "
            f"ranks: take {link.name}.with_accelerators({ranks}), or a cluster"
        )
    stages = range(len(owners))
    pairs = [(s, other) for s in stages for other in (s - 1, s + 1) if other in stages]
    return {(s, other): route(link, owners[s], owners[other]) for s, other in pairs}


def _is_placed(orders: Orders, owners: Sequence[int]) -> bool:
    """Whether all of a stage is on one rank, and micro-batches are 0, 1, 2 and so on, each once."""
    placed = all(
        op.stage >= 0 and owners[op.stage] == rank and op.kind in KINDS
        for rank, order in enumerate(orders)
        for op in order
    )
    numbers = sorted(op.micro_batch for order in orders for op in order if not waits(op))
    return placed and numbers == [*range(len(numbers))]
