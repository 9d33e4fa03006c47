"""Runs the rows: each workload by its name, on the machine that its row names."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from ..machines.hardware import Machine
from . import boxes
from .groups import group_of
from .parameters import Parameters, SimulatedRun
from .report import Comparison, Report
from .rows import PublishedFigure, RowError, read_rows
from .workloads import (
    attention,
    collectives,
    copies,
    decoding,
    gpt,
    kernels,
    pipelines,
    scaling,
    training,
    transformers,
)

_WORTH_A_PROCESS = 50
_PIECE = 12  # rows: few enough to share out evenly; neighbours share what is simulated once

Result = TypeVar("Result")
Workload = Callable[[Parameters, Machine], SimulatedRun]
WORKLOADS: dict[str, Workload] = {
    "matmul": kernels.matmul,
    "stream": kernels.stream,
    "convolution": kernels.convolution,
    "rows": kernels.rows,
    "launch": kernels.launch,
    "attention": attention.attention,
    "copy": copies.copy,
    "send": copies.send,
    "matmul_and_copy": copies.matmul_and_copy,
    "train": training.train,
    "infer": training.infer,
    "optimizer_step": training.optimizer_step,
    "decode": decoding.decode,
    "model_parallel": pipelines.model_parallel,
    "pipeline": pipelines.pipeline,
    "pipeline_bubble": pipelines.pipeline_bubble,
    "megatron": transformers.megatron,
    "tensor_parallel": transformers.tensor_parallel,
    "gpt_train": gpt.gpt_train,
    "training_memory": gpt.memory,
    "all_reduce": collectives.all_reduce,
    "data_parallel": scaling.data_parallel,
    "data_parallel_module": scaling.data_parallel_module,
    **collectives.OTHERS,
}


def predict(row: PublishedFigure, change: Callable[[Machine], Machine] | None = None) -> Comparison:
    """Simulate what a row describes, on its machine or on what `change` makes of that.

    Raises RowError if its machine, workload or parameters do not allow that.
    """
    parameters = Parameters(row.parameters)
    try:
        workload = WORKLOADS[row.workload]
    except KeyError:
        raise RowError(
            f"row {row.id}: no workload is called {row.workload!r}; there is {', '.join(WORKLOADS)}"
        ) from None
    try:
        machine = boxes.machine(row.machine, parameters.integer("ranks", None))
        run = workload(parameters, machine if change is None else change(machine))
        predicted, naive = run.in_unit(row.unit), run.in_naive_unit(row.unit)
    except ValueError as error:
        raise RowError(f"row {row.id} ({row.workload}): {error}") from error
    if unused := parameters.unused():
        raise RowError(f"row {row.id}: {row.workload} knows no parameter {', '.join(unused)}")
    return Comparison(row, predicted, group_of(row, machine), naive)


def validate(rows: Iterable[PublishedFigure] | None = None, *, processes: int = 1) -> Report:
    """Simulate all rows (None: those of the package), in so many processes."""
    return Report(each(predict, list(read_rows() if rows is None else rows), processes))


def each(
    of: Callable[[PublishedFigure], Result], rows: Sequence[PublishedFigure], processes: int
) -> tuple[Result, ...]:
    """What a function at the top of its module makes of each row, in so many processes if there are
    rows enough."""
    if processes == 1 or len(rows) < _WORTH_A_PROCESS:
        return tuple(map(of, rows))
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin) as pool:
        return tuple(pool.map(of, rows, chunksize=_PIECE))


def _begin() -> None:
    """Let the collector of garbage leave alone what has been imported: it would go through all of
    torch whenever a training step makes enough objects."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # or libraries in C++ report at the end what they find still there
