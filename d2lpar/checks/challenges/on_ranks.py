"""A puzzle on virtual ranks: a program that hangs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from ...timeline.formatting import bytes_text
from ...vgpu.ranks import run_ranks
from ..grader.source import Refused
from ..verdict import Wrong
from .evidence import gantt_of
from .laboratory import laboratory, listed, same
from .puzzle import Outcome

BOX, NUMBERS = "8x-h100-nvswitch", 1_000_000
SHOWN = ("vgpu:2", "vgpu:3")
TEXT_SILENT = (
    "a rank sent tensors of {sent}, and the gradients have {takes}: average them by collectives "
    "of the GPUs; pickled objects, and lists that ranks share, are none"
)
TEXT_HANGS = "{batches}: {error}"


def unstuck(answer: Callable) -> Outcome:
    """`unstuck(gradients)`: on each rank, the mean of the k-th gradients of those that have one.

    `gradients` are this rank's, on its GPU; ranks have different numbers of them.
    """
    figure = 0.0
    picture: dict = {}
    for counts, numbers in (((1, 1, 1, 1), 4), ((2, 1, 3, 0), 8), ((3, 3, 3, 4) * 2, NUMBERS)):
        seconds, picture = _tried(answer, counts, numbers)
        figure = 1e3 * seconds
    return Outcome(figure, "every rank calls each collective as often as all others", picture)


def _tried(answer: Callable, counts: tuple[int, ...], numbers: int) -> tuple[float, dict]:
    host = [
        [
            torch.randn(numbers, generator=torch.Generator().manual_seed(100 * rank + k))
            for k in range(count)
        ]
        for rank, count in enumerate(counts)
    ]
    rounds = [[own[k] for own in host if k < len(own)] for k in range(max(counts))]
    expected = [torch.stack(each).mean(0) for each in rounds]
    with laboratory(BOX, len(counts)) as lab:
        own = [[g.to(d) for g in each] for each, d in zip(host, lab.devices, strict=True)]
        keeps = [g for each in own for g in each] if numbers < 100 else []
        inputs = own if numbers < 100 else [[g.clone() for g in each] for each in own]

        def on_rank() -> object:
            return answer([*inputs[dist.get_rank()]])

        where = f"ranks with {', '.join(map(str, counts))} gradients"
        try:
            trial = lab.run(lambda: run_ranks(on_rank, lab.devices), keeps=keeps)
        except RuntimeError as error:
            if "rank" in str(error) and ("can go on" in str(error) or "collective" in str(error)):
                raise Wrong(TEXT_HANGS.format(batches=where, error=error)) from None
            raise
        assert isinstance(trial.result, list)
        for rank, got in enumerate(trial.result):
            means = listed(got, len(expected), f"means on rank {rank} ({where})")
            for k, (mean, right) in enumerate(zip(means, expected, strict=True)):
                same(mean, right, lab.devices[rank], f"mean {k} on rank {rank} ({where})")
        collectives = [span for span in trial.timeline if span.kind == "collective"]
        sent = sum(span.bytes for span in collectives) / len(counts)
        takes = 4.0 * numbers * len(expected)
        if sent < 0.98 * takes:
            raise Refused(
                TEXT_SILENT.format(sent=bytes_text(int(sent)), takes=bytes_text(int(takes)))
            )
        return trial.seconds, gantt_of(trial.timeline, devices=SHOWN)
