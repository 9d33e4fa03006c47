"""A puzzle on virtual ranks: a program that hangs."""

from __future__ import annotations

import random

import torch

from ...timeline.formatting import bytes_text
from ...trials import ranks as trials
from ...trials.calling import Called, Fault
from ..verdict import Refused, Wrong
from .evidence import Evidence, listed, same
from .puzzle import Outcome

TEXT_SILENT = (
    "a rank sent tensors of {sent}, and the gradients have {takes}: average them by collectives "
    "of the GPUs; pickled objects, and lists that ranks share, are none"
)
TEXT_HANGS = "{batches}: {error}"


def unstuck(answer: Called, seed: int) -> Outcome:
    """`unstuck(gradients)`: on each rank, the mean of the k-th gradients of those that have one.

    `gradients` are this rank's, on its GPU; ranks have different numbers of them.
    """
    figure, picture = 0.0, {}
    source = random.Random(seed)
    even = source.choice((1, 2, 3))
    uneven = source.sample((0, 1, 2, 3), 4)
    # Rank 3 and another have one more than the six others.
    more = {3, source.choice((0, 1, 2, 4, 5, 6, 7))}
    timed = [3 + (rank in more) for rank in range(8)]
    for counts, numbers in (
        ([even] * 4, 4), (uneven, source.randint(5, 20)), (timed, trials.NUMBERS),
    ):  # fmt: skip
        seen = _tried(answer, counts, numbers, seed)
        figure, picture = 1e3 * seen.seconds, seen.picture
    return Outcome(figure, "every rank calls each collective as often as all others", picture)


def _tried(answer: Called, counts: list[int], numbers: int, seed: int) -> Evidence:
    host = trials.gradients(counts, numbers, seed)
    rounds = [[own[k] for own in host if k < len(own)] for k in range(max(counts))]
    expected = [torch.stack(each).mean(0) for each in rounds]
    where = f"ranks with {', '.join(map(str, counts))} gradients"
    try:
        seen = Evidence(answer.tried(trials.unstuck, counts, numbers, seed), trials.BOX)
    except Fault as fault:
        said = fault.text
        if "rank" in said and ("can go on" in said or "collective" in said):
            raise Wrong(TEXT_HANGS.format(batches=where, error=said)) from None
        raise
    for rank, got in enumerate(listed(seen.result, len(counts), "ranks' results")):
        means = listed(got, len(expected), f"means on rank {rank} ({where})")
        for k, (mean, right) in enumerate(zip(means, expected, strict=True)):
            same(mean, right, f"vgpu:{rank}", f"mean {k} on rank {rank} ({where})")
    sent, takes = seen.sent_bytes / len(counts), 4.0 * numbers * len(expected)
    if sent < 0.98 * takes:
        raise Refused(TEXT_SILENT.format(sent=bytes_text(int(sent)), takes=bytes_text(int(takes))))
    seen.require_bytes(takes * (1 - 1 / len(counts)))
    return seen
