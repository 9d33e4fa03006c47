"""Puzzles on the toy machine. An answer is a program for each rank; the judge plays them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ...parallelism.toy_machine import (
    BACKWARD_MS,
    EXCHANGE_MS,
    FORWARD_MS,
    UPDATE_MS,
    Job,
    Order,
    Run,
    play,
)
from ...parallelism.toy_machine.job import ACTIVATION_GB, GRADIENT_GB, STATES_GB, WEIGHTS_GB
from ...trials import toys as trials
from ...trials.calling import Called
from ..verdict import Refused, Wrong
from .evidence import TEXT_TORN
from .puzzle import Outcome

DRAWN = 3  # jobs besides the one on the page
VERBS = (
    "forward", "backward", "all_gather", "reduce_scatter", "send", "recv", "update", "free",
)  # fmt: skip
TEXT_JOB = "{ranks} rank{s}, {layers} layers, {batches} batches"
TEXT_CASE = "{problem} ({job})"
TEXT_TOOK = "{ms:g} ms with {job}, and {best:g} is the optimum"
PASSES_MS = FORWARD_MS + BACKWARD_MS
WHOLE_GB = WEIGHTS_GB + GRADIENT_GB + STATES_GB


# --- jobs, and how fast each kind can be ----------------------------------------------------------
#
# `job(ranks, layers, batches)` says what lies where, and gives as much memory as a schedule needs;
# `optimum_ms(job)` is a time that no program can beat, and the time of the course's own program.


def accumulate_job(_: int, layers: int, batches: int) -> Job:
    """One GPU, with room for the activations of one batch."""
    return Job(1, layers, batches, layers * (WHOLE_GB + ACTIVATION_GB))


def accumulate_ms(job: Job) -> float:
    """The one GPU computes all passes and all updates, and so it is never idle."""
    return job.layers * (job.batches * PASSES_MS + UPDATE_MS)


def ddp_job(ranks: int, layers: int, _: int) -> Job:
    """Everything is everywhere; a batch for each rank."""
    return Job(ranks, layers, ranks, layers * (WHOLE_GB + ACTIVATION_GB))


def ddp_ms(job: Job) -> float:
    """Passes, and then the two exchanges of the last sum, or the updates if these take longer.

    All passes together keep all ranks busy until the last backward pass ends. The gradient that it
    makes still has to be summed, gathered and used. And each rank updates each layer.
    """
    last_ms = max(2 * EXCHANGE_MS, (job.layers - 1) * UPDATE_MS)
    return job.layers * PASSES_MS + last_ms + UPDATE_MS


def zero_1_job(ranks: int, layers: int, _: int) -> Job:
    """As DDP, but of the optimizer's states each rank has its share (Rajbhandari et al. 2020)."""
    whole_gb = WEIGHTS_GB + GRADIENT_GB + ACTIVATION_GB
    capacity_gb = layers * (whole_gb + STATES_GB / ranks)
    return Job(ranks, layers, ranks, capacity_gb, states_in_shards=True)


def zero_1_ms(job: Job) -> float:
    """Passes, the updates of all layers but two, the last sum, and the gathers of these two layers.

    Why nothing is faster: let m layers be gathered after the last backward pass. The others are
    updated before it, so it ends after the passes and their updates; then come a sum and m gathers.
    Each of them takes longer than an update, so a small m is good. For m = 1, layer 1 is updated
    before the last pass, which thus waits for a sum as well, and nothing is won: let p of the
    layers 2, 3, … be gathered after the last backward pass of layer 1. From there on, it is not
    only a sum, an update, a pass, a sum, an update and a gather (too long for p up to 2), but also
    two sums and p + 2 gathers one after the other (too long for p from 2 on).
    """
    update_ms = UPDATE_MS / job.ranks
    return job.layers * PASSES_MS + (job.layers - 2) * update_ms + 3 * EXCHANGE_MS


def fsdp_job(ranks: int, layers: int, _: int) -> Job:
    """Shards of everything, all activations, and room for a layer or two that are whole."""
    shards_gb = layers * (WEIGHTS_GB + STATES_GB) / ranks
    capacity_gb = shards_gb + layers * ACTIVATION_GB + WEIGHTS_GB + 2 * GRADIENT_GB
    return Job(
        ranks, layers, ranks, capacity_gb, states_in_shards=True, weights_in_shards=True
    )  # fmt: skip


def fsdp_ms(job: Job) -> float:
    """The first gather, passes, and then the last sum, or the updates if these take longer.

    Nothing computes before the first gather is done. After it, all is as in `ddp_ms`, but that each
    rank updates its own shards only, and gathers nothing at the end.
    """
    update_ms = UPDATE_MS / job.ranks
    last_ms = max(EXCHANGE_MS, (job.layers - 1) * update_ms) + update_ms
    return EXCHANGE_MS + job.layers * PASSES_MS + last_ms


def gpipe_job(ranks: int, layers: int, batches: int) -> Job:
    """Some layers for each rank, and room for the activations of all batches."""
    own = layers // ranks
    return Job(ranks, layers, batches, own * (WHOLE_GB + batches * ACTIVATION_GB), pipeline=True)


def one_f_one_b_job(ranks: int, layers: int, batches: int) -> Job:
    """Some layers for each rank, and room for the activations of as many batches as ranks."""
    own = layers // ranks
    return Job(ranks, layers, batches, own * (WHOLE_GB + ranks * ACTIVATION_GB), pipeline=True)


def pipeline_ms(job: Job) -> float:
    """(M + p - 1) passes in both directions (Huang et al. 2019, Narayanan et al. 2019).

    The last rank begins after p - 1 forward passes, and computes M in both directions. Its last
    gradient goes back through p - 1 ranks, and only then can the first rank update its layers.
    """
    own = job.layers // job.ranks
    return own * ((job.batches + job.ranks - 1) * PASSES_MS + UPDATE_MS)


def data_sizes(source: random.Random) -> tuple[int, int, int]:
    """Ranks, layers and batches that are drawn for a job in which the ranks split the data."""
    return source.randint(2, 5), source.randint(3, 6), source.randint(2, 6)


def pipeline_sizes(source: random.Random) -> tuple[int, int, int]:
    """The same for one in which they split the layers."""
    ranks = source.randint(2, 5)
    return ranks, ranks * source.randint(1, 2), source.randint(ranks + 1, 3 * ranks)


SHOWN, SHOWN_PIPELINE = (4, 4, 4), (4, 4, 8)


# --- judging --------------------------------------------------------------------------------------


def judge_of(
    job_of: Callable[[int, int, int], Job],
    optimum_ms: Callable[[Job], float],
    *,
    pipeline: bool = False,
) -> Callable[[Called, int], Outcome]:
    """The judge of a schedule: its figure is the worst time, in percent of the optimum."""
    sizes = pipeline_sizes if pipeline else data_sizes

    def judge(answer: Called, seed: int) -> Outcome:
        source = random.Random(seed)
        jobs = [job_of(*(SHOWN_PIPELINE if pipeline else SHOWN))]
        jobs += [job_of(*sizes(source)) for _ in range(DRAWN)]
        runs = [_played(answer, job) for job in jobs]
        slowest = max(runs, key=lambda run: run.ms / optimum_ms(run.job))
        percent = 100 * slowest.ms / optimum_ms(slowest.job)
        shown = runs[0] if percent <= 100 * (1 + 1e-9) else slowest
        took = TEXT_TOOK.format(ms=shown.ms, job=_in_words(shown.job), best=optimum_ms(shown.job))
        return Outcome(percent, took, picture_of(shown))

    return judge


def _played(answer: Called, job: Job) -> Run:
    """The run of an answer's programs. Raises `Wrong`, with its picture, if it ends badly."""
    run = play(_orders(answer.tried(trials.programs, asdict(job)), job), job)
    if run.problem:
        text = TEXT_CASE.format(problem=run.problem, job=_in_words(job))
        raise Wrong(text, picture_of(run))
    return run


def _orders(found: Any, job: Job) -> list[list[Order]]:
    """The verbs of each rank, of which nothing is believed."""
    if not isinstance(found, list) or len(found) != job.ranks:
        raise Refused(TEXT_TORN)
    return [[_order(row, job) for row in rows] for rows in found if isinstance(rows, list)]


def _order(row: Any, job: Job) -> Order:
    if not isinstance(row, list) or len(row) != 6:
        raise Refused(TEXT_TORN)
    verb, line, layer, batch, what, peer = row
    numbers = ((line, 10**6), (layer, job.layers), (batch, job.batches), (peer, job.ranks))
    fine = all(type(value) is int and -1 <= value < most for value, most in numbers)
    if not fine or verb not in VERBS or what not in ("", "weights", "gradients"):
        raise Refused(TEXT_TORN)
    return Order(verb, line, layer, batch, what, peer)


def _in_words(job: Job) -> str:
    s = "" if job.ranks == 1 else "s"
    return TEXT_JOB.format(ranks=job.ranks, s=s, layers=job.layers, batches=job.batches)


def picture_of(run: Run) -> dict:
    """What ran on each rank and what it held, as plain data."""
    boxes = [
        [box.rank, box.lane, box.verb, box.name, box.start_ms, box.end_ms] for box in run.boxes
    ]
    memory = [run.memory(rank) for rank in range(run.job.ranks)]
    return {
        "kind": "toy", "clock": "simulated on a toy machine", "spans": boxes, "memory": memory,
        "limit": run.job.capacity_gb, "note": _in_words(run.job),
    }  # fmt: skip


accumulate = judge_of(accumulate_job, accumulate_ms)
ddp = judge_of(ddp_job, ddp_ms)
zero_1 = judge_of(zero_1_job, zero_1_ms)
fsdp = judge_of(fsdp_job, fsdp_ms)
gpipe = judge_of(gpipe_job, pipeline_ms, pipeline=True)
one_f_one_b = judge_of(one_f_one_b_job, pipeline_ms, pipeline=True)
