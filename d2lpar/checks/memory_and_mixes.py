"""The exercises of lesson 09."""

from __future__ import annotations

import math

from ..parallelism.planner import AXES, Mesh, state_bytes
from ..trials.calling import Called
from .verdict import Wrong, exercise, is_number

WHY_ZERO = (
    "without ZeRO every rank holds all 16 bytes: 2 of the parameter, 2 of its gradient, 12 of "
    "Adam, which are an fp32 copy and two moments",
    "stage 1 divides Adam's 12 bytes among the ranks, and only these",
    "stage 2 divides the gradients as well as Adam's state; the parameters are whole on every rank",
    "stage 3 divides everything, the parameters, too",
)


@exercise
def zero_bytes(answer: Called) -> str:
    """`zero_bytes(parameters, ranks, stage)`: what a rank holds of parameters, gradients and Adam.

    ZeRO stages 0 (none) to 3; 2 bytes for a parameter in fp16, 2 for its gradient, 12 for Adam's
    state in fp32: copy, momentum, variance (Rajbhandari et al., "ZeRO", 2020).
    """
    for parameters, ranks in ((7.5e9, 64), (1e9, 4), (6_000_000, 1), (1.3e10, 1024), (3e8, 3)):
        for stage, why in enumerate(WHY_ZERO):
            expected = sum(state_bytes(parameters, ranks, stage))
            got = answer(parameters, ranks, stage)
            call = f"zero_bytes({parameters:g}, {ranks}, {stage})"
            if not is_number(got):
                raise Wrong(f"{call}: expected a number of bytes, got {got!r}")
            if not math.isclose(got, expected, rel_tol=1e-6):
                if math.isclose(got * 1e9, expected, rel_tol=0.01):
                    raise Wrong(f"{call}: got {got:.4g}, which are gigabytes: expected bytes")
                raise Wrong(f"{call}: expected {_gb(expected)}, got {_gb(got)}: {why}")
    held_gb = [f"{sum(state_bytes(7.5e9, 64, stage)) / 1e9:.1f}" for stage in range(4)]
    return (
        f"7.5e9 parameters on 64 ranks: {', '.join(held_gb)} GB, as in figure 1 of the "
        "paper. Stages 1 and 2 send as much as data parallelism does, stage 3 half as much again. "
        "Activations are not in this"
    )


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.4g} GB"


WHY_AXIS = (
    "replicas are pipeline * channel ranks apart: the first index, data, changes slowest",
    "stages are channel ranks apart: the index in the middle",
    "ranks that split a layer are neighbours: the last index, channel, changes fastest",
)


@exercise
def groups_of(answer: Called) -> str:
    """`groups_of(rank, data, pipeline, channel)`: whom a rank exchanges with along each axis.

    Ranks are numbered as `torch.arange(data * pipeline * channel).view(data, pipeline, channel)`;
    three lists of ranks, of the data, the pipeline and the channel axis, itself included, sorted.
    """
    for sizes in ((2, 3, 4), (4, 2, 2), (1, 2, 8), (3, 1, 1), (2, 4, 1)):
        mesh = Mesh(*sizes)
        groups = [mesh.groups(axis) for axis in AXES]
        for rank in range(mesh.size):
            expected = [next(g for g in each if rank in g) for each in groups]
            _check_groups(answer(rank, *sizes), expected, rank, sizes)
    return (
        "the channel axis, which sends in every layer, has neighbouring ranks: with 8 GPUs a "
        "machine and channel = 8 it never leaves a machine, while data, which sends once a step, "
        "goes over the network"
    )


def _check_groups(got: object, expected: list[list[int]], rank: int, sizes: tuple) -> None:
    call = f"groups_of({rank}, {', '.join(map(str, sizes))})"
    if not (
        isinstance(got, tuple | list)
        and len(got) == len(AXES)
        and all(isinstance(group, list) for group in got)
    ):
        raise Wrong(f"{call}: expected three lists of ranks, got {got!r}")
    for name, why, group, want in zip(
        ("data", "pipeline", "channel"), WHY_AXIS, got, expected, strict=True
    ):
        if group == want:
            continue
        if rank not in group:
            why = f"rank {rank} itself is in each of its groups: it takes part in the exchange"
        elif sorted(group) == want:
            why = "sorted, so that all members of a group make the same list"
        raise Wrong(f"{call}: along {name} expected {want}, got {group}: {why}")
