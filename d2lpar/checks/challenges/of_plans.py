"""Puzzles of plans: the mix of a network on a cluster, and what a budget allows."""

from __future__ import annotations

import random
from dataclasses import asdict
from functools import cache
from typing import Any

from ... import machines
from ...parallelism.planner.choice import USABLE, best, plans
from ...parallelism.planner.costs.memory_model import memory
from ...parallelism.planner.costs.steps import StepTime, step
from ...parallelism.planner.layout import Layout
from ...parallelism.planner.mesh import Mesh
from ...parallelism.planner.models import model as named
from ...parallelism.planner.transformer import Transformer
from ...timeline.formatting import bytes_text
from ...trials import plans as trials
from ...trials.calling import Called
from ...trials.evidence import bars_of
from ..verdict import Wrong
from .evidence import TEXT_NOTHING, kind
from .puzzle import Outcome

# Machines, how many GPUs they have, least and most parameters of a network in billions, and of
# samples in a step: at most so many times as many as GPUs.
BOXES = (
    ("8x-h100-nvswitch", 8, (5, 9), 16), ("8x-a100-nvswitch", 8, (9, 14), 32),
    ("8x8x-h100-nvswitch-8xib-ndr", 64, (25, 45), 8),
)  # fmt: skip
LAYERS, HEADS, HEAD = (24, 32, 40, 48), range(24, 80, 8), 128
# Of the capstone: networks, how many H100, and samples in a step.
NAMED = ("llama-2-13b", "gpt-3-13b", "mpt-13b")
SIZES, BATCHES = ((8,), (16, 32, 64), (128, 256)), range(512, 1537, 256)
TEXT_LAYOUT = "{job}: expected a par.planner.Layout, got {got}"
TEXT_GPUS = "{job}: the mesh {mesh} has {got} ranks, and there are {gpus} GPUs"
TEXT_BATCH = "{job}: a step has {got} samples, and should have {batch}"
TEXT_DIVIDES = "{job}: {axis} {value} does not divide the {whole} {of}"
TEXT_MEMORY = "{job}: a GPU needs {need}, and may plan with {there}"
TEXT_FIXED = "{job}: leave {names} as they are"
FREE = {"mesh", "micro_batch", "micro_batches", "chunks", "recompute", "zero"}


def mix(answer: Called, seed: int) -> Outcome:
    """`mix(model, machine, gpus, batch)`: a layout of each of three networks that are drawn.

    The figure is the mean time of a step, in percent of that of the planner's best.
    """
    source = random.Random(seed)
    jobs = [(_network(source, billions), box, gpus, most) for box, gpus, billions, most in BOXES]
    mine: dict = {}
    others: dict = {}
    ratios = []
    for model, box, gpus, most in jobs:
        batch = gpus * source.randint(most // 4, most)
        time = timed(asked(answer, model, box, gpus, batch), model, box, gpus, batch)
        found = reference(model, box, batch)
        ratios.append(time.step_s / found.step_s)
        for bars, one in ((mine, time), (others, found)):
            bars[model.name] = {part: 1e3 * seconds for part, seconds in one.parts.items()}
    unit = "time of a step (ms), predicted"
    percent = 100 * sum(ratios) / len(ratios)
    return Outcome(percent, "three mixes that fit", bars_of(mine, unit), bars_of(others, unit))


def _network(source: random.Random, billions: tuple[int, int]) -> Transformer:
    """One with so many parameters."""
    while True:
        layers, heads = source.choice(LAYERS), source.choice(HEADS)
        count = 12 * layers * (HEAD * heads) ** 2 / 1e9
        if billions[0] <= count <= billions[1]:
            return Transformer(f"drawn-{count:.1f}b", layers, HEAD * heads, heads)


def reference(model: str | Transformer, machine: str, batch: int) -> StepTime:
    """The step of the mix that the planner's own search finds."""
    plan = best(plans(model, _machine(machine), batch=batch, zero=None))
    return step(named(model), plan.layout, _machine(machine))


def asked(answer: Called, model: str | Transformer, *arguments: Any) -> object:
    """The layout that an answer returns, made anew of its fields; anything else as it is."""
    told = asdict(model) if isinstance(model, Transformer) else model
    got = answer.tried(trials.layout, told, *arguments)
    if not isinstance(got, dict) or not isinstance(got.get("layout"), dict):
        return got
    fields = {str(name): value for name, value in got["layout"].items()}
    return Layout(**fields | {"mesh": Mesh(**fields["mesh"])})


def cluster(gpus: int) -> str:
    """The machine of so many H100."""
    return "8x-h100-nvswitch" if gpus == 8 else f"{gpus // 8}x8x-h100-nvswitch-8xib-ndr"


def timed(got: object, model: str | Transformer, machine: str, gpus: int, batch: int) -> StepTime:
    """The step of a layout, which must be one, of the right size, and fit. Raises `Wrong`."""
    job = f"{named(model).name} on {gpus} GPUs"
    if got is None:
        raise Wrong(TEXT_NOTHING.format(what="par.planner.Layout(…)"))
    if type(got) is not Layout:
        raise Wrong(TEXT_LAYOUT.format(job=job, got=kind(got)))
    network = named(model)
    _check_sizes(got, job, gpus, batch)
    fixed = Layout(got.mesh)
    changed = [n for n in vars(fixed) if n not in FREE and getattr(got, n) != getattr(fixed, n)]
    if changed or got.mesh.context > 1:
        raise Wrong(TEXT_FIXED.format(job=job, names=", ".join(changed or ["mesh.context"])))
    for axis, value, whole, of in (
        ("tensor", got.mesh.tensor, network.heads, "heads"),
        ("pipeline × chunks", got.mesh.pipeline * got.chunks, network.layers, "layers"),
    ):
        if whole % value:
            raise Wrong(TEXT_DIVIDES.format(job=job, axis=axis, value=value, whole=whole, of=of))
    if got.chunks > 1 and (got.mesh.pipeline == 1 or got.micro_batches % got.mesh.pipeline):
        raise Wrong(
            TEXT_DIVIDES.format(
                job=job,
                axis="pipeline",
                value=got.mesh.pipeline,
                whole=got.micro_batches,
                of="micro-batches, as chunks need it",
            )
        )
    box = _machine(machine)
    there = USABLE * box.accelerators[0].memory_bytes
    need = memory(network, got).total_bytes
    if need > there:
        raise Wrong(TEXT_MEMORY.format(job=job, need=bytes_text(need), there=bytes_text(there)))
    return step(network, got, box)


def _check_sizes(got: Layout, job: str, gpus: int, batch: int) -> None:
    if got.mesh.size != gpus:
        raise Wrong(TEXT_GPUS.format(job=job, mesh=got.mesh, got=got.mesh.size, gpus=gpus))
    if got.samples != batch:
        raise Wrong(TEXT_BATCH.format(job=job, got=got.samples, batch=batch))


@cache
def _machine(name: str) -> machines.Machine:
    return machines.machine(name)
