"""Plays the programs of all ranks: when each verb runs, what it needs, and what is held meanwhile.

A rank takes its verbs one after the other. One that computes holds the program up until it is done.
An exchange only begins: it runs beside what follows, one exchange after the other, and what needs
its result waits. A `recv` waits until what it wants was sent; sending takes no time, because what
is handed on is small beside the weights.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import texts
from .job import (
    ACTIVATION_GB,
    BACKWARD_MS,
    EXCHANGE_MS,
    FORWARD_MS,
    GRADIENT_GB,
    UPDATE_MS,
    WEIGHTS_GB,
    Job,
)
from .program import Order
from .state import ERROR, OUTPUT, State, Steps, Sum, step_of

COMPUTES, EXCHANGES = "computes", "exchanges"


class RefusedError(Exception):
    """A verb that the machine cannot carry out."""


@dataclass(frozen=True)
class Box:
    """Something that ran: on which rank and lane, what, with which name, and when."""

    rank: int
    lane: str
    verb: str
    name: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Change:
    """Memory taken, or given back if `gb` is negative, by a verb."""

    time_ms: float
    gb: float
    by: str


@dataclass
class Run:
    """What came of it: `problem` is empty if every layer has taken the step of all batches."""

    job: Job
    boxes: list[Box] = field(default_factory=list)
    changes: list[list[Change]] = field(default_factory=list)
    problem: str = ""

    @property
    def ms(self) -> float:
        """When the last verb is done."""
        return max((box.end_ms for box in self.boxes), default=0.0)

    def memory(self, rank: int) -> list[tuple[float, float]]:
        """(ms, GB): what a rank holds from each moment on at which that changes."""
        held, points = self.job.start_gb(rank), [(0.0, self.job.start_gb(rank))]
        for change in self.changes[rank]:
            held += change.gb
            if points[-1][0] == change.time_ms:
                points.pop()
            points.append((change.time_ms, held))
        return points

    def peak_gb(self, rank: int) -> float:
        """The most that a rank holds."""
        return max(gb for _, gb in self.memory(rank))


def play(programs: Sequence[Sequence[Order]], job: Job) -> Run:
    """Run the programs of all ranks together, until they end, wait for ever or go wrong."""
    player = _Player(programs, job)
    try:
        player.run_all()
        player.find_hang()
        player.check_end()
    except RefusedError as error:
        player.run.problem = str(error)
    player.sort_memory()
    player.run.problem = player.run.problem or player.find_full()
    return player.run


@dataclass
class _Exchange:
    order: Order
    asked_ms: float


class _Rank:
    def __init__(self, number: int, orders: Sequence[Order], job: Job) -> None:
        self.number, self.orders, self.next = number, orders, 0
        self.now_ms = 0.0
        self.state = State(job, number)
        self.exchanges: list[_Exchange] = []
        self.running: Counter[tuple[str, int]] = Counter()  # exchanges that have no end yet
        self.ready_ms: dict[tuple[str, int], float] = {}

    @property
    def order(self) -> Order | None:
        """What it is at; None at the end."""
        return self.orders[self.next] if self.next < len(self.orders) else None


class _Player:
    def __init__(self, programs: Sequence[Sequence[Order]], job: Job) -> None:
        self.job = job
        self.ranks = [_Rank(number, orders, job) for number, orders in enumerate(programs)]
        self.run = Run(job, changes=[[] for _ in programs])
        self._sent: dict[tuple[int, int, int], list[tuple[float, tuple[str, int, int]]]] = (
            defaultdict(list)
        )
        self._done, self._lane_ms = 0, 0.0  # exchanges, and when the last one ends

    def run_all(self) -> None:
        """Go round as long as anybody gets on."""
        gets_on = True
        while gets_on:
            gets_on = False
            for rank in self.ranks:
                while rank.order is not None and self._step(rank, rank.order):
                    rank.next += 1
                    gets_on = True
            while self._exchange():
                gets_on = True

    # --- one rank, one verb -----------------------------------------------------------------------

    def _step(self, rank: _Rank, order: Order) -> bool:
        """Carry out a verb; False if it has to wait for others."""
        match order.verb:
            case "all_gather" | "reduce_scatter":
                if self.job.pipeline:
                    self._refuse(rank, order, texts.NO_SHARDS)
                self._layer(rank, order)
                rank.exchanges.append(_Exchange(order, rank.now_ms))
                rank.running[order.what, order.layer] += 1
            case "send":
                what = rank.state.newest.get(order.batch)
                if what is None:
                    self._refuse(rank, order, texts.NOTHING_TO_SEND)
                else:
                    self._sent[rank.number, order.peer, order.batch].append((rank.now_ms, what))
            case "recv":
                arrived = self._sent[order.peer, rank.number, order.batch]
                if not arrived:
                    return False
                sent_ms, what = arrived.pop(0)
                rank.now_ms = max(rank.now_ms, sent_ms)
                rank.state.held.add(what)
            case _:
                return self._alone(rank, order)
        return True

    def _alone(self, rank: _Rank, order: Order) -> bool:
        """A verb that needs what is here, and perhaps what an exchange is bringing."""
        self._layer(rank, order)
        needs = {
            "forward": ("weights",), "free": ("weights",),
            "backward": ("weights", "gradients"), "update": ("weights", "gradients"),
        }[order.verb]  # fmt: skip
        for what in needs:
            if rank.running[what, order.layer]:
                return False
        ready = [rank.ready_ms.get((what, order.layer), 0.0) for what in needs]
        rank.now_ms = max(rank.now_ms, *ready)
        do = {
            "forward": self._forward, "backward": self._backward,
            "update": self._update, "free": self._free,
        }[order.verb]  # fmt: skip
        do(rank, order)
        return True

    def _forward(self, rank: _Rank, order: Order) -> None:
        state, layer, batch = rank.state, order.layer, order.batch
        steps = self._whole(rank, order)
        if (layer, batch) in state.activations:
            self._refuse(rank, order, texts.AGAIN)
        if layer == 0 and batch not in self.job.batches_of(rank.number):
            owner = batch % self.job.ranks
            self._refuse(rank, order, texts.OTHERS_BATCH, batch=batch, owner=owner)
        if layer > 0 and (OUTPUT, layer - 1, batch) not in state.held:
            self._refuse(rank, order, texts.NO_INPUT, before=layer - 1, batch=batch)
        self._take(rank, ACTIVATION_GB, order)
        self._compute(rank, order, FORWARD_MS)
        state.activations[layer, batch] = steps
        self._hand_on(state, (OUTPUT, layer, batch))

    def _backward(self, rank: _Rank, order: Order) -> None:
        state, layer, batch = rank.state, order.layer, order.batch
        steps = self._whole(rank, order)
        if (layer, batch) not in state.activations:
            self._refuse(rank, order, texts.NO_ACTIVATION, layer=layer, batch=batch)
        if layer < self.job.layers - 1 and (ERROR, layer, batch) not in state.held:
            self._refuse(rank, order, texts.NO_ERROR, after=layer + 1, batch=batch)
        if state.activations.pop((layer, batch)) != steps:
            self._refuse(rank, order, texts.CHANGED, layer=layer)
        if layer not in state.gradients:
            self._take(rank, GRADIENT_GB, order)
            state.gradients[layer] = [Sum() for _ in range(self.job.shards)]
        self._compute(rank, order, BACKWARD_MS)
        self._take(rank, -ACTIVATION_GB, order)
        for each in state.gradients[layer]:
            each[batch] += 1
        state.held.discard((ERROR, layer, batch))
        self._hand_on(state, (ERROR, layer - 1, batch))

    def _update(self, rank: _Rank, order: Order) -> None:
        state, layer, job = rank.state, order.layer, self.job
        whole = state.gradients.get(layer)
        sums: dict[int, Sum] = {}
        if job.states_in_shards:
            shard = state.own_shard
            own = state.shards.get(layer, whole[shard] if whole else None)
            sums = {} if own is None else {shard: own}
        elif whole is not None:
            sums = dict(enumerate(whole))
        if not sums:
            kind = texts.A_SHARD if job.states_in_shards else texts.A_WHOLE
            self._refuse(rank, order, texts.NO_GRADIENT, kind=kind, layer=layer)
        for shard, batches in sums.items():
            steps = state.weights[layer][shard]
            if steps is None:
                self._refuse(rank, order, texts.NOT_WHOLE, layer=layer)
            else:
                state.weights[layer][shard] = (*steps, step_of(batches))
        self._compute(rank, order, UPDATE_MS * len(sums) / job.shards)
        if state.gradients.pop(layer, None) is not None:
            self._take(rank, -GRADIENT_GB, order)
        if state.shards.pop(layer, None) is not None:
            self._take(rank, -GRADIENT_GB / job.shards, order)

    def _free(self, rank: _Rank, order: Order) -> None:
        state, layer = rank.state, order.layer
        if self.job.shards == 1 or not state.is_whole(layer):
            self._refuse(rank, order, texts.NOTHING_TO_FREE, layer=layer)
        own = state.own_shard
        state.weights[layer] = [
            steps if shard == own else None for shard, steps in enumerate(state.weights[layer])
        ]
        self._take(rank, -WEIGHTS_GB * (1 - 1 / self.job.shards), order)

    def _layer(self, rank: _Rank, order: Order) -> None:
        if order.layer not in rank.state.weights:
            own = self.job.layers_of(rank.number)
            self._refuse(rank, order, texts.OTHERS_LAYER, first=own[0], last=own[-1])

    def _whole(self, rank: _Rank, order: Order) -> Steps:
        """The steps that a layer's weights have taken, which must all be here, and alike."""
        layer = order.layer
        found = {steps for steps in rank.state.weights[layer] if steps is not None}
        if not rank.state.is_whole(layer):
            self._refuse(rank, order, texts.NOT_WHOLE, layer=layer)
        if len(found) > 1:
            self._refuse(rank, order, texts.UNLIKE, layer=layer)
        return found.pop()

    @staticmethod
    def _hand_on(state: State, what: tuple[str, int, int]) -> None:
        state.held.add(what)
        state.newest[what[2]] = what

    def _compute(self, rank: _Rank, order: Order, ms: float) -> None:
        name = str(order.batch if self.job.pipeline and order.batch >= 0 else order.layer)
        start_ms, rank.now_ms = rank.now_ms, rank.now_ms + ms
        box = Box(rank.number, COMPUTES, order.verb, name, start_ms, rank.now_ms)
        self.run.boxes.append(box)

    def _take(self, rank: _Rank, gb: float, order: Order, at_ms: float | None = None) -> None:
        by = texts.WHERE.format(verb=order, rank=rank.number, line=order.line)
        time_ms = rank.now_ms if at_ms is None else at_ms
        self.run.changes[rank.number].append(Change(time_ms, gb, by))

    @staticmethod
    def _refuse(rank: _Rank, order: Order, text: str, **said: object) -> None:
        where = texts.WHERE.format(verb=order, rank=rank.number, line=order.line)
        raise RefusedError(f"{where}: {text.format(**said)}")

    # --- all ranks together -----------------------------------------------------------------------

    def _exchange(self) -> bool:
        """Carry out the next exchange; False if not all ranks have come to it."""
        if any(len(rank.exchanges) <= self._done for rank in self.ranks):
            return False
        each = [rank.exchanges[self._done] for rank in self.ranks]
        first = each[0].order
        for rank, one in zip(self.ranks, each, strict=True):
            if (one.order.verb, one.order.what, one.order.layer) != (
                first.verb, first.what, first.layer,
            ):  # fmt: skip
                said = {"number": self._done + 1, "first": first, "line": first.line}
                self._refuse(rank, one.order, texts.ORDER, **said)
        start_ms = max(self._lane_ms, *(one.asked_ms for one in each))
        end_ms = self._lane_ms = start_ms + EXCHANGE_MS
        key = (first.what, first.layer)
        self._bring(first, [one.order for one in each], start_ms, end_ms)
        for rank, one in zip(self.ranks, each, strict=True):
            rank.running[key] -= 1
            rank.ready_ms[key] = end_ms
            name = f"{'A' if first.verb == 'all_gather' else 'R'}{first.layer}"
            verb = one.order.verb
            self.run.boxes.append(Box(rank.number, EXCHANGES, verb, name, start_ms, end_ms))
        self._done += 1
        return True

    def _bring(self, first: Order, orders: list[Order], start_ms: float, end_ms: float) -> None:
        layer, n = first.layer, self.job.shards
        for rank, order in zip(self.ranks, orders, strict=True):
            self._must_have(rank, order)
        states = [rank.state for rank in self.ranks]
        if first.verb == "reduce_scatter":
            each = [state.gradients.pop(layer) for state in states]
            for rank, order in zip(self.ranks, orders, strict=True):
                if layer not in rank.state.shards:
                    self._take(rank, GRADIENT_GB / n, order, start_ms)
                self._take(rank, -GRADIENT_GB, order, end_ms)
                total = rank.state.shards.get(layer, Sum())
                for whole in each:
                    total = total + whole[rank.state.own_shard]
                rank.state.shards[layer] = total
        elif first.what == "gradients":
            sums = [state.shards.pop(layer) for state in states]
            for rank, order in zip(self.ranks, orders, strict=True):
                self._take(rank, GRADIENT_GB * (1 - 1 / n), order, start_ms)
                rank.state.gradients[layer] = [Sum(each) for each in sums]
        else:
            shards = [state.weights[layer][state.own_shard] for state in states]
            for rank, order in zip(self.ranks, orders, strict=True):
                lacking = rank.state.weights[layer].count(None)
                self._take(rank, WEIGHTS_GB * lacking / n, order, start_ms)
                rank.state.weights[layer] = [*shards]

    def _must_have(self, rank: _Rank, order: Order) -> None:
        state, layer = rank.state, order.layer
        if order.verb == "reduce_scatter":
            if layer not in state.gradients:
                self._refuse(rank, order, texts.NO_GRADIENT, kind=texts.A_WHOLE, layer=layer)
        elif order.what == "gradients":
            if layer not in state.shards:
                self._refuse(rank, order, texts.NO_GRADIENT, kind=texts.A_SHARD, layer=layer)
            if layer in state.gradients:
                self._refuse(rank, order, texts.TWO_GRADIENTS, layer=layer)

    # --- how it ends ------------------------------------------------------------------------------

    def find_hang(self) -> None:
        """Raise RefusedError if ranks wait for ever, and say which for what."""
        waits = [
            texts.WAITS.format(rank=rank.number, verb=rank.order, line=rank.order.line)
            for rank in self.ranks
            if rank.order is not None
        ]
        short = [rank for rank in self.ranks if len(rank.exchanges) <= self._done]
        for rank in self.ranks:
            if len(rank.exchanges) > self._done:
                order = rank.exchanges[self._done].order
                lacking = ", ".join(str(other.number) for other in short)
                text = texts.ALONE.format(rank=rank.number, verb=order, line=order.line)
                waits.append(text + texts.NOT_CALLED.format(lacking=lacking))
                break
        if waits:
            raise RefusedError(texts.HANGS.format(waits="; ".join(waits)))

    def check_end(self) -> None:
        """Raise RefusedError if a shard that a rank must have has not taken the step of all."""
        goal = step_of(Sum(range(self.job.batches)))
        for rank in self.ranks:
            for layer, shards in rank.state.weights.items():
                for shard, steps in enumerate(shards):
                    if self.job.weights_in_shards and shard != rank.state.own_shard:
                        continue
                    self._check_shard(rank, layer, shard, steps, goal)

    def _check_shard(
        self, rank: _Rank, layer: int, shard: int, steps: Steps | None, goal: tuple
    ) -> None:
        if steps == (goal,):
            return
        part = f"shard {shard} of layer {layer}" if self.job.shards > 1 else f"layer {layer}"
        said = {"rank": rank.number, "part": part, "batches": self.job.batches}
        if steps is None:
            raise RefusedError(texts.GONE.format(**said))
        if not steps:
            raise RefusedError(texts.NOT_UPDATED.format(**said))
        if len(steps) > 1:
            raise RefusedError(texts.MANY_STEPS.format(steps=len(steps), **said))
        summed = ", ".join(
            f"{batch} ({times} times)" if times > 1 else str(batch) for batch, times in steps[0]
        )
        raise RefusedError(texts.OTHER_SUM.format(summed=summed, **said))

    def sort_memory(self) -> None:
        """In the order of time; what is given back at a moment can be taken at the same one."""
        for changes in self.run.changes:
            changes.sort(key=lambda change: (change.time_ms, change.gb))

    def find_full(self) -> str:
        """What is said of the first verb for which there is no memory; "" if there is none."""
        first: tuple[float, str] | None = None
        for rank, changes in enumerate(self.run.changes):
            held = self.job.start_gb(rank)
            for change in changes:
                held += change.gb
                if held > self.job.capacity_gb + 1e-9 and (
                    first is None or change.time_ms < first[0]
                ):
                    text = texts.FULL.format(
                        where=change.by, need=held, capacity=self.job.capacity_gb
                    )
                    first = change.time_ms, text
        return first[1] if first else ""
