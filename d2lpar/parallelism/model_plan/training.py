"""A training step: the fastest mix that fits, or the one that needs least, and what would fit.

Mixes are the planner's: a layer is simulated as the torch program that it is, shapes only, and
layers, micro-batches, stages and exchanges are added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from ... import machines
from ...machines.hardware import Machine
from ...timeline.formatting import bytes_text
from .. import planner
from ..planner.choice import MICRO_BATCHES, USABLE
from ..planner.costs.layers import GpuAndHost, LayerTimes, layer_times, product_times
from ..planner.costs.share import share_of
from ..planner.layout import RECOMPUTE, ZERO, Layout
from ..planner.mesh import Wiring
from ..planner.messages import PARTS
from ..planner.search_space import MOST_GPUS, layouts, meshes
from .wanted import AXES, OPEN, Wanted

MOST_TOKENS = 2**16  # of a micro-batch that is tried
LEAST_TOKENS = 128  # below that a shorter sample is no remedy
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in OPEN}


def train(model: planner.Transformer, wanted: Wanted) -> planner.Plan:
    """The fastest plan that fits, or the one that needs the least memory.

    Raises ValueError if nothing divides evenly, or no mix has the degrees that are asked for.
    """
    found = _plans(model, wanted, wanted.micro_batch)
    for size in _larger_micro_batches(model, wanted):
        with suppress(ValueError):  # none divides
            found += _plans(model, wanted, size)
    asked = [plan for plan in found if wanted.is_mesh(*plan.mesh.sizes)]
    if not asked:
        raise ValueError(_no_mesh(model, wanted, found))
    fitting = [plan for plan in asked if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.step_s)
    return min(asked, key=lambda plan: plan.memory_bytes)


def _plans(
    model: planner.Transformer, wanted: Wanted, micro_batch: int | None
) -> list[planner.Plan]:
    return planner.plans(
        model,
        wanted.machine,
        batch=wanted.batch,
        gpus=wanted.gpus,
        zero=wanted.zero,
        recompute=wanted.recompute,
        micro_batch=micro_batch,
        attention=wanted.attention,
        precision=wanted.precision,
        compiled=wanted.compiled,
        optimizer=wanted.optimizer,
    )


def _larger_micro_batches(model: planner.Transformer, wanted: Wanted) -> Iterator[int]:
    """Beyond those that the planner tries: of short samples a GPU needs more to be busy."""
    size = 2 * MICRO_BATCHES[-1]
    while wanted.micro_batch is None and size <= wanted.batch:
        if size * model.sequence > MOST_TOKENS:
            return
        yield size
        size *= 2


def _no_mesh(model: planner.Transformer, wanted: Wanted, found: list[planner.Plan]) -> str:
    degrees = ", ".join(f"{axis} {getattr(wanted, axis)}" for axis in AXES if getattr(wanted, axis))
    there = "; ".join(str(plan.mesh) for plan in found[:6])
    more = f", and {len(found) - 6} more" if len(found) > 6 else ""
    return (
        f"no mix of {wanted.gpus} GPUs has {degrees} for {model.name} with a batch of "
        f"{wanted.batch}: data × pipeline × tensor must be {wanted.gpus}, tensor divide the "
        f"{model.heads} heads, pipeline the {model.layers} layers, data the batch; there is "
        f"{there}{more}"
    )


# --- what bounds it -------------------------------------------------------------------------------


def bound_of(plan: planner.Plan, wanted: Wanted) -> str:
    """What a step waits for most, in words, with the share that shows it."""
    parts = plan.parts
    most = max(parts, key=parts.__getitem__)
    share = parts[most] / plan.step_s
    if most != "compute":
        return f"{PARTS[most]}, {share:.0%} of the step"
    gpu = GpuAndHost.of(wanted.accelerator, wanted.machine.host)
    one = share_of(plan.model, plan.layout)
    layer = layer_times(gpu, one)
    if layer.forward_host_s + layer.backward_host_s > 0.97 * _both(layer):
        return "the host, which cannot queue kernels as fast as the GPU computes them"
    products = _both(product_times(gpu, one)) / _both(layer)
    what = "arithmetic" if products >= 0.5 else "memory, which feeds what lies between products"
    return (
        f"{what}: computing is {share:.0%} of the step, and matrix products are {products:.0%} of "
        "a layer's time"
    )


def _both(times: LayerTimes) -> float:
    return times.forward_s + times.backward_s


# --- what would make it fit -----------------------------------------------------------------------


def remedies(model: planner.Transformer, wanted: Wanted, *, fixed: bool) -> list[str]:
    """Changes by which it fits, each tried: what it then needs of a GPU.

    First those that cost no samples: settings left open, more GPUs, others; then a smaller batch,
    shorter samples and a smaller optimizer state.
    """
    return [
        *_opened(model, wanted),
        *_more(model, wanted),
        *_moved(model, wanted),
        *_smaller(model, wanted, fixed=fixed),
    ]


def _more(model: planner.Transformer, wanted: Wanted) -> Iterator[str]:
    """Twice as many of the GPUs, or four times, and so on, with all that is computed again."""
    machine, gpus = wanted.machine, 2 * wanted.gpus
    size = len(machine.accelerators)
    if machine.nodes == 1 and machine.name not in machines.CATALOGUE and gpus > size:
        return  # part of a machine, or one of somebody's own: a cluster of it has no name
    least = replace(
        wanted, recompute=wanted.recompute or "full", micro_batch=wanted.micro_batch or 1
    )
    while gpus <= min(MOST_GPUS, wanted.batch * model.layers * model.heads):
        if layout := fitting_layout(model, replace(least, gpus=gpus)):
            yield f"{_cluster(machine, gpus)}: {_layout_text(model, layout)}"
            return
        gpus *= 2


def _cluster(machine: Machine, gpus: int) -> str:
    """So many GPUs: of the machine itself, or of a cluster and how that may be named."""
    size = len(machine.accelerators)
    if gpus <= size:
        return f"--gpus {gpus}"
    said = f"{gpus} of these GPUs"
    if machine.nodes > 1:
        return said
    return f"{said}, such as --machine {gpus // size}x{machine.name}-{min(size, 8)}xib-ndr"


def _moved(model: planner.Transformer, wanted: Wanted) -> Iterator[str]:
    """The machine of the catalogue with the least memory that has the room."""
    one = _a_layout(wanted)
    states = model.parameters * (2 * one.number_bytes + one.recipe.state_bytes)
    for machine in with_room(states, wanted):
        there = replace(wanted, machine=machine, gpus=len(machine.accelerators))
        if layout := fitting_layout(model, there):
            yield f"--machine {machine.name}: {_layout_text(model, layout)}"
            return


def with_room(nbytes: float, wanted: Wanted) -> list[Machine]:
    """Machines of the catalogue that could hold so much: those of the same GPUs first, then those
    with less memory."""
    card = wanted.accelerator.name
    roomy = [
        machine
        for machine in machines.CATALOGUE.values()
        if USABLE * _memory_bytes(machine) > nbytes and machine.name != wanted.machine.name
    ]
    return sorted(roomy, key=lambda m: (m.accelerators[0].name != card, _memory_bytes(m)))


def _memory_bytes(machine: Machine) -> int:
    return sum(card.memory_bytes for card in machine.accelerators)


def _opened(model: planner.Transformer, wanted: Wanted) -> Iterator[str]:
    """Each setting that was given, left to the planner; else all of them at once."""
    any_alone = False
    for name in wanted.given:
        if layout := fitting_layout(model, wanted.opened(name)):
            any_alone = True
            yield f"without {_OPTIONS[name]}: {_layout_text(model, layout)}"
    if any_alone or len(wanted.given) < 2:
        return
    if layout := fitting_layout(model, wanted.opened(*wanted.given)):
        names = ", ".join(_OPTIONS[name] for name in wanted.given)
        yield f"without {names}: {_layout_text(model, layout)}"


def _smaller(model: planner.Transformer, wanted: Wanted, *, fixed: bool) -> Iterator[str]:
    batch = wanted.batch // 2
    while batch:
        if layout := fitting_layout(model, replace(wanted, batch=batch)):
            yield f"--batch {batch}: {_layout_text(model, layout)}"
            break
        batch //= 2
    tokens = 0 if fixed else model.sequence // 2
    while tokens >= LEAST_TOKENS:
        shorter = replace(model, sequence=tokens, places=model.places or model.sequence)
        if layout := fitting_layout(shorter, wanted):
            yield f"--sequence {tokens}: {_layout_text(shorter, layout)}"
            break
        tokens //= 2
    if wanted.optimizer != "adam" or wanted.precision not in ("bf16", "fp16"):
        return
    if layout := fitting_layout(model, replace(wanted, optimizer="adam-bf16")):
        what = "moments of two bytes, no fp32 copy"
        yield f"--optimizer adam-bf16 ({what}): {_layout_text(model, layout)}"


def fitting_layout(model: planner.Transformer, wanted: Wanted) -> Layout | None:
    """The layout that needs the least memory, if it fits; None if none does, or none divides."""
    needs = [
        (planner.memory(model, layout).total_bytes, at, layout)
        for at, layout in enumerate(_small_layouts(model, wanted))
    ]
    if not needs:
        return None
    nbytes, _, layout = min(needs)
    return layout if nbytes <= USABLE * wanted.accelerator.memory_bytes else None


def _a_layout(wanted: Wanted) -> Layout:
    """One with the settings that are not searched."""
    return Layout(
        planner.Mesh(),
        attention=wanted.attention,
        precision=wanted.precision,
        compiled=wanted.compiled,
        optimizer=wanted.optimizer,
    )


def _small_layouts(model: planner.Transformer, wanted: Wanted) -> Iterator[Layout]:
    """Those that may need the least: larger micro-batches and interleaved stages need more."""
    for mesh in meshes(model, wanted.gpus, Wiring.of(wanted.machine).node_size):
        if wanted.is_mesh(*mesh.sizes):
            yield from layouts(
                *(model, mesh, wanted.batch),
                zeros=ZERO if wanted.zero is None else (wanted.zero,),
                recompute=RECOMPUTE if wanted.recompute is None else (wanted.recompute,),
                micro_batches=(wanted.micro_batch or 1,),
                chunks=(1,),
                settings=_a_layout(wanted).settings,
            )


def _layout_text(model: planner.Transformer, layout: Layout) -> str:
    how = [str(layout.mesh), f"micro-batches of {layout.micro_batch}"]
    if layout.recompute != "none":
        how.append(f"--recompute {layout.recompute}")
    if layout.zero:
        how.append(f"ZeRO stage {layout.zero}")
    need = planner.memory(model, layout).total_bytes
    return f"{bytes_text(need)} with {', '.join(how)}"
