"""When each operation of a schedule runs, and when its result is on its way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ...vgpu.sim.copy_routes import Hop, Port
from ...vgpu.sim.staging import transfers
from .costs import StageCost
from .operations import FORWARD, KINDS, WEIGHTS, Key, Operation, Orders, feeds, key, waits

Hops = list[tuple[tuple[Port, ...], float]]
"""The ports that each hop of a route occupies, and for how many seconds."""


@dataclass
class Simulator:
    """Ranks that do their operations one after the other, each as soon as what it needs is there.

    A result leaves when its operation ends, `handover_s` later if another rank waits for it, and
    takes the route between the two stages: each hop when all its ports are free, first come, first
    served. In `again` are the (stage, micro-batch) whose forward pass comes again before the
    backward pass, as soon as the rank has nothing else to do.

    `run` fills in `starts_s[rank]` and `ends_s[rank]`, of its operations, and `sent_s[rank]`, the
    starts of all hops of their results.
    """

    orders: Orders
    costs: Sequence[StageCost]
    owners: Sequence[int]
    routes: Mapping[tuple[int, int], list[Hop]]
    handover_s: float = 0.0
    again: Collection[tuple[int, int]] = ()
    starts_s: list[list[float]] = field(init=False)
    ends_s: list[list[float]] = field(init=False)
    sent_s: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.starts_s = [[] for _ in self.orders]
        self.ends_s = [[] for _ in self.orders]
        self.sent_s = [[] for _ in self.orders]
        self._last = len(self.costs) - 1
        self._seconds = {kind: [cost.seconds(kind) for cost in self.costs] for kind in KINDS}
        self._hops = {pair: self._hops_between(*pair) for pair in self.routes}
        self._free_s = {p: 0.0 for hops in self._hops.values() for ports, _ in hops for p in ports}
        self._there_s: dict[Key, float] = {}  # when what an operation needs is there
        self._waiting: dict[Key, int] = {}  # which rank waits for that
        self._ending: list[tuple[float, int]] = []  # a heap: when which rank ends an operation
        self._twice = False

    def run(self) -> bool:
        """Whether all operations could be done, and each result was used once."""
        for rank in range(len(self.orders)):
            self._begin(rank, 0.0)
        while self._ending:
            now_s, rank = heappop(self._ending)
            op = self.orders[rank][len(self.starts_s[rank]) - 1]
            for name in feeds(op, self._last):
                self._hand_on(op, name, rank, now_s)
            self._begin(rank, now_s)
        return not (self._waiting or self._there_s or self._twice)

    def _begin(self, rank: int, now_s: float) -> None:
        """Let a rank go on with its next operation, or wait for what that needs."""
        order, starts_s = self.orders[rank], self.starts_s[rank]
        if len(starts_s) == len(order):
            return
        op = order[len(starts_s)]
        kind, stage, m = op
        if self.again and kind not in (FORWARD, WEIGHTS) and (stage, m) in self.again:
            now_s += self._seconds[FORWARD][stage]
        if waits(op):
            there_s = self._there_s.pop(key(op), None)
            if there_s is None:
                self._waiting[key(op)] = rank
                return
            now_s = max(now_s, there_s)
        starts_s.append(now_s)
        end_s = now_s + self._seconds[kind][stage]
        self.ends_s[rank].append(end_s)
        heappush(self._ending, (end_s, rank))

    def _hand_on(self, op: Operation, name: Key, rank: int, now_s: float) -> None:
        """Bring a result to what waits for it."""
        other = name[1]
        if self.owners[other] != rank:
            now_s = self._send(rank, self._hops[op.stage, other], now_s + self.handover_s)
        self._twice |= name in self._there_s
        self._there_s[name] = now_s
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            self._begin(waiting, self.ends_s[waiting][-1] if self.ends_s[waiting] else 0.0)

    def _send(self, rank: int, hops: Hops, now_s: float) -> float:
        """When something that leaves now arrives."""
        free_s, sent_s = self._free_s, self.sent_s[rank]
        for ports, seconds in hops:
            start_s = max(now_s, *[free_s[port] for port in ports])
            now_s = start_s + seconds
            sent_s.append(start_s)
            for port in ports:
                free_s[port] = now_s
        return now_s

    def _hops_between(self, stage: int, other: int) -> Hops:
        nbytes = self.costs[min(stage, other)].sent_bytes
        sent = transfers(self.routes[stage, other], nbytes)
        return [(transfer.ports, transfer.seconds) for transfer in sent]
