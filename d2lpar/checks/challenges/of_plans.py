"""Puzzles of plans: the mix of a network on a cluster, and what a budget allows."""

from __future__ import annotations

from functools import cache
from typing import Any

from ... import machines
from ...parallelism.planner.choice import USABLE
from ...parallelism.planner.layout import Layout
from ...parallelism.planner.memory_model import memory
from ...parallelism.planner.mesh import Mesh
from ...parallelism.planner.models import model as named
from ...parallelism.planner.steps import StepTime, step
from ...timeline.formatting import bytes_text
from ...trials import plans as trials
from ...trials.calling import Called
from ...trials.evidence import bars_of
from ..verdict import Wrong
from .evidence import TEXT_NOTHING, kind
from .puzzle import Outcome

JOBS = (
    ("llama-2-7b", "8x-h100-nvswitch", 8, 64),
    ("gpt-3-13b", "8x-a100-nvswitch", 8, 128),
    ("megatron-39.1b", "8x8x-h100-nvswitch-8xib-ndr", 64, 256),
)
CAPSTONE = ("llama-2-13b", 1024)  # and sequences a step
SIZES = (8, 64, 512)
TEXT_LAYOUT = "{job}: expected a par.planner.Layout, got {got}"
TEXT_GPUS = "{job}: the mesh {mesh} has {got} ranks, and there are {gpus} GPUs"
TEXT_BATCH = "{job}: a step has {got} samples, and should have {batch}"
TEXT_DIVIDES = "{job}: {axis} {value} does not divide the {whole} {of}"
TEXT_MEMORY = "{job}: a GPU needs {need}, and may plan with {there}"
TEXT_FIXED = "{job}: leave {names} as they are"
FREE = {"mesh", "micro_batch", "micro_batches", "chunks", "recompute", "zero"}


def mix(answer: Called) -> Outcome:
    """`mix(model, machine, gpus, batch)`: a layout; seconds of a step of each of three jobs."""
    bars, total_s = {}, 0.0
    for model, machine, gpus, batch in JOBS:
        time = timed(asked(answer, model, machine, gpus, batch), model, machine, gpus, batch)
        bars[model] = {part: 1e3 * seconds for part, seconds in time.parts.items()}
        total_s += time.step_s
    return Outcome(1e3 * total_s, "three mixes that fit", bars_of(bars, "time of a step (ms)"))


def asked(answer: Called, *arguments: Any) -> object:
    """The layout that an answer returns, made anew of its fields; anything else as it is."""
    got = answer.tried(trials.layout, *arguments)
    if not isinstance(got, dict) or not isinstance(got.get("layout"), dict):
        return got
    fields = {str(name): value for name, value in got["layout"].items()}
    return Layout(**fields | {"mesh": Mesh(**fields["mesh"])})


def cluster(gpus: int) -> str:
    """The machine of so many H100."""
    return "8x-h100-nvswitch" if gpus == 8 else f"{gpus // 8}x8x-h100-nvswitch-8xib-ndr"


def timed(got: object, model: str, machine: str, gpus: int, batch: int) -> StepTime:
    """The step of a layout, which must be one, of the right size, and fit. Raises `Wrong`."""
    job = f"{model} on {gpus} GPUs"
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
