"""What divides evenly: the mixes of a model on so many GPUs, and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypedDict

from ...timeline.inputs import checked
from .costs.memory_model import memory
from .layout import Layout, Settings
from .mesh import Mesh
from .plan import Plan
from .transformer import Transformer

MOST_NODES = 2  # of a tensor group: more are slower still
MOST_GPUS = 2**16


class Choices(TypedDict):
    """What may be chosen for a mesh: each stage of ZeRO, recomputation, micro-batch and number of
    chunks to try, and the settings that are fixed."""

    zeros: Iterable[int]
    recompute: Iterable[str]
    micro_batches: Iterable[int]
    chunks: Iterable[int]
    settings: Settings


def meshes(model: Transformer, gpus: int, node_size: int) -> Iterator[Mesh]:
    """Tensor divides the heads, pipeline the layers; groups fill nodes, or nodes hold groups."""
    for tensor in _divisors(model.heads, MOST_NODES * node_size):
        if not _even(tensor, gpus, node_size):
            continue
        for pipeline in _divisors(model.layers, gpus):
            ranks = tensor * pipeline
            if _even(ranks, gpus, node_size):
                yield Mesh(gpus // ranks, pipeline, tensor)


def _even(ranks: int, gpus: int, node_size: int) -> bool:
    """Whether groups of so many neighbouring ranks lie in nodes without one that is torn."""
    aligned = node_size % ranks == 0 or ranks % node_size == 0 or gpus <= node_size
    return gpus % ranks == 0 and aligned


def layouts(
    model: Transformer,
    mesh: Mesh,
    batch: int,
    *,
    zeros: Iterable[int],
    recompute: Iterable[str],
    micro_batches: Iterable[int],
    chunks: Iterable[int],
    settings: Settings,
) -> Iterator[Layout]:
    """All settings of a mesh, those that compute less again first.

    The interleaved schedule takes micro-batches in rounds of as many as there are stages.
    """
    zeros = [zero for zero in zeros if zero not in (2, 3) or mesh.pipeline == 1]
    for size in micro_batches:
        count, rest = divmod(batch, mesh.data * size)
        if rest or not count:
            continue
        for pieces in chunks:
            if pieces > 1 and (mesh.pipeline == 1 or count % mesh.pipeline):
                continue
            if model.layers % (mesh.pipeline * pieces):
                continue
            for zero in zeros:
                for again in recompute:
                    yield Layout(mesh, size, count, pieces, again, zero=zero, **settings)


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


@checked
def gpus_that_do(plan: Plan) -> int | None:
    """How many GPUs of the kind the model needs, with the batch and the settings of a plan but any
    mix: twice as many, or four times, and so on. None if no number does."""
    count = 2 * plan.mesh.size
    while count <= MOST_GPUS and not would_fit(plan, gpus=count):
        count *= 2
    return count if count <= MOST_GPUS else None


def would_fit(plan: Plan, *, gpus: int | None = None, zero: int | None = None) -> bool:
    """Whether any mix fits with another number of GPUs or stage of ZeRO than a plan's."""
    layout = plan.layout
    found = (
        candidate
        for mesh in meshes(plan.model, gpus or plan.mesh.size, plan.node_size)
        for candidate in layouts(
            plan.model,
            mesh,
            layout.samples,
            zeros=(layout.zero if zero is None else zero,),
            recompute=(layout.recompute,),
            micro_batches=(layout.micro_batch,),
            chunks=(1,),
            settings=layout.settings,
        )
    )
    return any(memory(plan.model, one).total_bytes <= plan.capacity_bytes for one in found)
