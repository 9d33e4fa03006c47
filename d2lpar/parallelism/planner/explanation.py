"""A plan in words, and why it is the first: each reason with the number that it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from ...timeline.formatting import bytes_text, seconds_text
from . import messages
from .layout import ZERO
from .plan import Plan
from .search_space import MOST_GPUS, gpus_that_do, would_fit
from .transformer import Transformer
from .uncertainty import ties

MOST_TIES = 3  # that are named


def reasons(first: Plan, found: Sequence[Plan]) -> str:
    """What the first of all plans comes to, and what the others would: a line each."""
    lines = [
        _headline(first),
        *_axis(first, found, "tensor", _tensor(first)),
        *_axis(first, found, "pipeline", _pipeline(first)),
        _data(first),
        *_ties(found),
        _runner_up(found),
    ]
    return "\n".join(lines)


def none_fits(found: Sequence[Plan]) -> str:
    """What the mix that needs least is short of, and what would do."""
    least = min(found, key=lambda plan: plan.memory_bytes)
    gpus = gpus_that_do(least)
    text = messages.REMEDY_NONE if gpus is None else messages.REMEDY_GPUS
    sharing = [zero for zero in ZERO if zero > least.layout.zero and would_fit(least, zero=zero)]
    return messages.ERROR_NONE_FITS.format(
        model=least.model.name,
        gpus=_gpus(least),
        machine=least.machine,
        mesh=least.mesh,
        how=least.settings,
        remedy=text.format(
            gpus=gpus,
            most=f"{MOST_GPUS:,}",
            zero=messages.REMEDY_ZERO.format(stage=sharing[0]) if sharing else "",
        ),
        **_need(least),
    )


def none_divides(model: Transformer, gpus: int, batch: int) -> str:
    """Why there is no mix at all, and what to try."""
    fewer = 2 ** max(0, (gpus - 1).bit_length() - 1)
    other = messages.NO_MIX_OTHER.format(count=gpus, fewer=_counted(fewer))
    return messages.ERROR_NO_MIX.format(
        model=model.name,
        gpus=_counted(gpus),
        batch=batch,
        heads=model.heads,
        layers=model.layers,
        other=other if gpus > 1 else "",
    )


def _headline(plan: Plan) -> str:
    return messages.FIRST.format(
        model=plan.model.name,
        parameters=f"{plan.model.parameters / 1e9:.1f} B",
        gpus=_gpus(plan),
        machine=plan.machine,
        mesh=plan.mesh,
        how=plan.settings,
        samples=plan.layout.samples,
        step=seconds_text(plan.step_s),
        uncertainty=plan.uncertainty,
        samples_per_s=plan.samples_per_s,
        tokens=plan.tokens_per_s_per_gpu,
        utilisation=plan.model_flops_utilisation,
        tflops=plan.flops_per_s / 1e12,
        memory=bytes_text(plan.memory_bytes),
        capacity=bytes_text(plan.capacity_bytes),
    )


def _gpus(plan: Plan) -> str:
    return _counted(plan.mesh.size)


def _counted(gpus: int) -> str:
    return messages.ONE_GPU if gpus == 1 else messages.GPUS.format(count=gpus)


def _tensor(plan: Plan) -> str:
    tensor = plan.mesh.tensor
    if tensor == 1:
        return messages.TENSOR_ONE
    text = messages.TENSOR_WITHIN if tensor <= plan.node_size else messages.TENSOR_BEYOND
    return text.format(tensor=tensor, node=plan.node_size, share=_share(plan, "tensor"))


def _pipeline(plan: Plan) -> str:
    pipeline = plan.mesh.pipeline
    if pipeline == 1:
        return messages.PIPELINE_ONE
    return messages.PIPELINE.format(
        pipeline=pipeline,
        layers=plan.model.layers // pipeline,
        share=_share(plan, "bubble"),
        sending=_share(plan, "sending"),
    )


def _data(plan: Plan) -> str:
    if plan.mesh.data == 1:
        return messages.DATA_ONE
    share = _share(plan, "gradients") + _share(plan, "parameters")
    return messages.DATA.format(data=plan.mesh.data, share=share)


def _ties(found: Sequence[Plan]) -> list[str]:
    """Which others a prediction cannot tell from the first."""
    others = ties(found)[1:]
    if not others:
        return []
    meshes = "; ".join(str(plan.mesh) for plan in others[:MOST_TIES])
    more = len(others) - MOST_TIES
    if more > 0:
        meshes = messages.AND_MORE.format(meshes=meshes, count=more)
    return [
        messages.TIES.format(uncertainty=found[0].uncertainty, count=len(others), meshes=meshes)
    ]


def _axis(first: Plan, found: Sequence[Plan], axis: str, said: str) -> list[str]:
    """What is said of an axis; and what less of it would do, or more where it is 1."""
    size = getattr(first.mesh, axis)
    others = [plan for plan in found if (getattr(plan.mesh, axis) < size) == (size > 1)]
    values = {getattr(plan.mesh, axis) for plan in others} - {size}
    if not values:
        return [said]
    near = max(values) if size > 1 else min(values)
    there = [plan for plan in others if getattr(plan.mesh, axis) == near]
    return [said, _compared(first, there, axis, near)]


def _compared(first: Plan, others: list[Plan], axis: str, value: int) -> str:
    if not others[0].fits:
        least = min(others, key=lambda plan: plan.memory_bytes)
        return messages.NO_ROOM.format(axis=axis, value=value, mesh=least.mesh, **_need(least))
    return messages.SLOWER.format(
        axis=axis, value=value, mesh=others[0].mesh, **_gap(first, others[0])
    )


def _runner_up(found: Sequence[Plan]) -> str:
    if len(found) == 1 or not found[1].fits:
        return messages.NO_RUNNER_UP
    return messages.RUNNER_UP.format(mesh=found[1].mesh, **_gap(found[0], found[1]))


def _gap(first: Plan, other: Plan) -> dict[str, str]:
    """How much longer the other takes, and the part that it loses most in."""
    lost = {name: other.parts[name] - first.parts[name] for name in first.parts}
    part = max(lost, key=lost.__getitem__)
    again = other.layout.recompute
    how = (
        ""
        if again == first.layout.recompute
        else messages.HOW.format(recompute=messages.RECOMPUTE[again])
    )
    why = messages.WHY.format(
        seconds=seconds_text(lost[part]),
        part=messages.PARTS[part],
        how=how if part == "compute" else "",
    )
    return {
        "percent": f"{other.step_s / first.step_s - 1:.1%}",
        "why": why if lost[part] > 0 else "",
    }


def _need(plan: Plan) -> dict[str, str]:
    """What a plan needs of what there is, and what for."""
    parts = plan.memory.parts
    most = max(parts, key=parts.__getitem__)
    return {
        "memory": bytes_text(plan.memory_bytes),
        "capacity": bytes_text(plan.capacity_bytes),
        "most_bytes": bytes_text(parts[most]),
        "most": messages.MEMORY_PARTS[most],
    }


def _share(plan: Plan, part: str) -> float:
    return plan.parts[part] / plan.step_s
