"""Runs the rows: each workload by its name, on the machine that its row names."""

from __future__ import annotations

import atexit
import gc
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

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
    kernels,
    measuring,
    pipelines,
    scaling,
    training,
)
from .workloads.nets import gpt, transformers

_WORTH_A_PROCESS = 50
_PIECE = 12  # rows: few enough to share out evenly; neighbours share what is simulated once

Result = TypeVar("Result")
Workload = Callable[[Parameters, Machine], SimulatedRun]
Change = Callable[[Machine], Machine]
WORKLOADS: dict[str, Workload] = {
    "matmul": kernels.matmul,
    "stream": kernels.stream,
    "convolution": kernels.convolution,
    "rows": kernels.rows,
    "batch_norm": kernels.batch_norm,
    "recurrent": kernels.recurrent,
    "launch": kernels.launch,
    "attention": attention.attention,
    "copy": copies.copy,
    "send": copies.send,
    "matmul_and_copy": copies.matmul_and_copy,
    "train": training.train,
    "infer": training.infer,
    "optimizer_step": training.optimizer_step,
    "peak_memory": training.peak_memory,
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
    "replicate": scaling.replicate,
    **collectives.OTHERS,
}


def predict(row: PublishedFigure, change: Change | None = None) -> Comparison:
    """Simulate what a row describes, on its machine or on what `change` makes of that.

    Raises RowError if its machine, workload or parameters do not allow that.
    """
    run, machine = _run(row, change)
    predicted = _in_unit(row, run)
    return Comparison(row, predicted, group_of(row, machine), run.in_naive_unit(row.unit))


def _run(row: PublishedFigure, change: Change | None = None) -> tuple[SimulatedRun, Machine]:
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
    except ValueError as error:
        raise RowError(f"row {row.id} ({row.workload}): {error}") from error
    if unused := parameters.unused():
        raise RowError(f"row {row.id}: {row.workload} knows no parameter {', '.join(unused)}")
    return run, machine


def _in_unit(row: PublishedFigure, run: SimulatedRun) -> float:
    try:
        return run.in_unit(row.unit)
    except ValueError as error:
        raise RowError(f"row {row.id} ({row.workload}): {error}") from error


def measure(row: PublishedFigure, device: torch.device, budget_s: float) -> tuple[float, float]:
    """Run what a row describes on a real GPU: the figure in the row's unit, and the widest spread
    of its times, nan where nothing can be repeated. The same program as `predict` simulates.

    Repeats of a program take `budget_s` of the wall's time. Raises RowError as `predict` does, and
    what the GPU raises.
    """
    with measuring.on_real_gpu(device, budget_s) as watch:
        run, _ = _run(row)
        return _in_unit(row, run), max(watch.spreads, default=math.nan)


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
