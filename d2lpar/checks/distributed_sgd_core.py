"""The core of lesson 06: the ring, on virtual ranks, and the step model, against cases by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..trials import distributed_sgd as trials
from ..trials.calling import Called
from .verdict import Wrong, exercise, is_number, values_of

FLOAT_BYTES = 4
MS, MB = 1e-3, 10**6
# A shape and a number of ranks: no shape can be cut into equal pieces.
RINGS = (((1001,), 3), ((7, 3), 2), ((3,), 4), ((2499, 2501), 4))
ROWS = [[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0], [500.0, 600.0, 700.0, 800.0]]


@exercise(gives_a_value=False)
def all_reduce_ring(answer: Called) -> str:
    """`all_reduce_ring(X)`: every rank's X becomes the sum of all, by sends around a ring.

    X may have any shape. A rank sends at most 2 (n - 1) pieces, each an n-th of it, rounded up.
    """
    for shape, n in RINGS:
        found = answer.tried(trials.all_reduce_ring, shape, n)
        where = f"{n} ranks with {math.prod(shape):,} numbers each"
        if found["stuck"]:
            raise Wrong(f"{where}: {found['stuck']}")
        for rank, held in enumerate(found["held"]):
            _check_sum(values_of(held).flatten().tolist(), rank, n, where)
        if found["collectives"]:
            raise Wrong(
                f"{where}: the sums are right, but {', '.join(found['collectives'])} did the work: "
                "take `dist.isend` and `dist.irecv`, which send from one rank to another"
            )
        _check_sent(found["sent_bytes"], math.prod(shape), n, where)
    _check_places(answer.tried(trials.ring_of_numbers, ROWS))
    sent = max(found["sent_bytes"])
    return (
        f"all sums are right. Of 4 ranks with {FLOAT_BYTES * math.prod(RINGS[-1][0]) / MB:.1f} MB "
        f"each, none has sent more than {sent / MB:.1f} MB, which is 2 (n - 1) / n times as much"
    )


def _check_sum(held: list[float], rank: int, n: int, where: str) -> None:
    """Each number is 11…1, with a digit for each rank."""
    expected = sum(10**r for r in range(n))
    wrong = next((i for i, value in enumerate(held) if value != expected), None)
    if wrong is None:
        return
    got, at = held[wrong], f"{where}, rank r has 10**r everywhere: rank {rank}, position {wrong}"
    if all(value == 10**rank for value in held):
        why = "X is as it was: write the sums into it, its pieces are views"
    elif math.isclose(got, expected / n):
        why = "that is the mean; a caller who wants it divides by n"
    else:
        why = _who_is_in(got, n)
    raise Wrong(f"{at}: expected {expected:g}, got {got:g}: {why}")


def _who_is_in(got: float, n: int) -> str:
    """What the digits of a sum say."""
    if not (0 <= got < 10**n and got == int(got)):
        return "no sum of what the ranks have"
    counts = [int(got) // 10**rank % 10 for rank in range(n)]
    told = [
        f"rank {r}'s number is in it {count} times" for r, count in enumerate(counts) if count > 1
    ]
    told += [f"rank {r}'s number is missing" for r, count in enumerate(counts) if count == 0]
    half = (
        "in the second n - 1 steps, what was received is a finished sum and replaces the piece"
        if max(counts) > 1
        else "each piece has to go past all ranks, and then its sum once more"
    )
    return f"{', '.join(told)}; {half}"


def _check_sent(sent: Sequence[int], numbers: int, n: int, where: str) -> None:
    most = 2 * (n - 1) * math.ceil(numbers / n) * FLOAT_BYTES
    for rank, nbytes in enumerate(sent):
        if nbytes > most:
            raise Wrong(
                f"{where}: the sums are right, but rank {rank} has sent {nbytes:,} bytes; expected "
                f"{most:,} at most, 2 (n - 1) pieces of an n-th each. Who sends all of X in each "
                "step sends more, the more ranks there are"
            )


def _check_places(got: list[list[float]]) -> None:
    """Different numbers, so that pieces must be where they were; on ranks without GPUs."""
    expected = [sum(column) for column in zip(*ROWS, strict=True)]
    for rank, row in enumerate(got):
        if row != expected:
            raise Wrong(
                f"ranks with {', '.join(map(str, ROWS))}: rank {rank}: expected {expected}, got "
                f"{row}: a piece is added to another piece than its own"
            )


class Case(NamedTuple):
    """A step in ms and MB, worked by hand."""

    end: float
    backward_end: float
    gradients: list[tuple[float, float]]  # (ready, MB), as the network has its parameters
    network: tuple[float, float]  # ms of latency, MB per ms
    cap: float
    expected: float
    why: str

    def exchange(self, size: float) -> float:
        """The ms that so many MB take."""
        latency, rate = self.network
        return latency + size / rate

    @property
    def size(self) -> float:
        """All MB."""
        return sum(size for _, size in self.gradients)


CASES = (
    Case(
        20, 14, [(1, 10), (4, 20), (12, 70), (13, 1)], (1, 1), 25, 114,
        "the first two gradients fill a bucket at 4 ms, which takes 31 ms, until 35 ms; the next "
        "takes 71 ms, until 106 ms, and the last 2 ms, until 108 ms, 94 ms after backward",
    ),
    Case(
        6, 4, [(4, 10)], (1, 1), 25, 17,
        "the bucket goes at 4 ms and takes 11 ms, until 15 ms; the update of 2 ms comes after that",
    ),
    Case(
        30, 20, [(5, 10)], (1, 1), 10, 30,
        "the exchange ends at 16 ms, before backward does, so nothing waits for it",
    ),
    Case(
        22, 20, [(10, 25)], (3, 5), 25, 22,
        "the only bucket is full at 10 ms and is there at 18 ms; nothing is left for another one, "
        "which would have a latency, too",
    ),
    Case(
        50, 40, [(38, 30), (5, 25)], (1, 5), 25, 55,
        "the first bucket goes at 5 ms, until 11 ms; then the network is idle until 38 ms, and the "
        "second bucket takes 7 ms, until 45 ms, 5 ms after backward",
    ),
    Case(
        12, 10, [(9, 2), (6, 6), (3, 6)], (2, 2), 10, 19,
        "the gradients that are ready at 3 and 6 ms go together at 6 ms, until 14 ms; the last one "
        "takes 3 ms more, until 17 ms, 7 ms after backward",
    ),
    Case(
        40, 28, [(26, 10), (18, 30), (10, 30), (6, 10)], (1, 2), 40, 64,
        "the first two gradients go at 10 ms, until 31 ms; the others at 31 ms, until 52 ms, 24 ms "
        "after backward",
    ),
)  # fmt: skip


@exercise
def step_model(answer: Called) -> str:
    """`step_model(step, exchange_s, cap)`: the seconds of a step whose gradients go in buckets.

    A bucket goes as soon as it has `cap` bytes or is the last one and the network is free; the
    update waits for the last bucket.
    """
    for case in CASES:
        gradients = [(ready * MS, int(size * MB)) for ready, size in case.gradients]
        latency, rate = case.network
        found = answer.tried(
            trials.step_model, case.end * MS, case.backward_end * MS, gradients,
            (latency * MS, rate * MB / MS), int(case.cap * MB),
        )  # fmt: skip
        _check_step(found["step_s"], case)
    return (
        "all steps are those worked out by hand: buckets hide an exchange, but never the last one"
    )


def _check_step(got: object, case: Case) -> None:
    latency, rate = case.network
    call = (
        f"backward ends at {case.backward_end:g} ms and the step at {case.end:g} ms, gradients of "
        f"{', '.join(f'{size:g} MB at {ready:g} ms' for ready, size in case.gradients)}, "
        f"cap {case.cap:g} MB, an exchange takes {latency:g} ms and {1 / rate:g} ms per MB"
    )
    if not is_number(got):
        raise Wrong(f"{call}: expected a number of seconds, got {got!r}")
    if math.isclose(got, case.expected * MS, rel_tol=1e-6):
        return
    taken = next((why for ms, why in _others(case) if math.isclose(got, ms * MS)), None)
    told = f"{taken}. Worked out by hand, {case.why}" if taken else case.why
    raise Wrong(f"{call}: expected {case.expected * MS:g} s, got {got:g} s: {told}")


def _others(case: Case) -> list[tuple[float, str]]:
    """What plausible models say, and which they are."""
    whole = case.exchange(case.size)
    return [
        (case.end + whole, "that is t1 + t2, as if nothing were sent beside backward"),
        (max(case.end, whole), "that is max(t1, t2), as if the exchange began with the step"),
        (
            max(case.end, case.expected - case.end + case.backward_end),
            "the update comes after the last bucket, so its time is added to that",
        ),
    ]
