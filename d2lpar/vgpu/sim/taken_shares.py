"""What collectives take of a device's multiprocessors, and what that costs the kernels beside them.

A block of NCCL's holds a multiprocessor as long as its collective lasts; what computes meanwhile
has the others. So a kernel runs at that share of its speed. One that ran already when the
collective began has lost as much; the device's next kernel makes up for it, as a kernel's end is
known when it begins.
"""

from __future__ import annotations

from .busy_intervals import Resource


class TakenShares:
    """When part of a device's multiprocessors is taken, and what its kernels still owe for that."""

    __slots__ = ("_engine", "_owed_s", "_taken", "matter")

    def __init__(self, engine: Resource) -> None:
        self.matter = False  # whether a kernel may last longer for them
        self._engine = engine
        self._taken: list[tuple[float, float, float]] = []
        self._owed_s = 0.0

    def take(self, start_s: float, end_s: float, share: float) -> None:
        """Take a share of all multiprocessors for so long."""
        self._taken.append((start_s, end_s, share))
        self._owed_s += share * self._engine.busy_s(start_s, end_s)
        self.matter = True

    def needed_s(self, start_s: float, seconds: float) -> float:
        """How long a kernel lasts that needs `seconds` alone, if it begins at `start_s`."""
        now_s, left_s = start_s, seconds + self._owed_s
        for from_s, to_s, share in self._taken:
            if to_s <= now_s:
                continue
            alone_s = min(max(from_s - now_s, 0.0), left_s)
            now_s, left_s = now_s + alone_s, left_s - alone_s
            beside_s = min((to_s - now_s) * (1 - share), left_s) if to_s > now_s else 0.0
            now_s, left_s = now_s + beside_s / (1 - share), left_s - beside_s
        return now_s + left_s - start_s

    def begun(self, start_s: float) -> None:
        """A kernel has begun, which paid what was owed; what ended before it is over."""
        self._owed_s = 0.0
        self._taken = [taken for taken in self._taken if taken[1] > start_s]
        self.matter = bool(self._taken)


class Engine(Resource):
    """A device's compute engine: its kernels have what collectives leave them."""

    __slots__ = ("shares",)

    def __init__(self) -> None:
        super().__init__()
        self.shares = TakenShares(self)
