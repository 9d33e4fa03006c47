"""The exercises of lesson 09."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..parallelism.planner import AXES, Mesh, state_bytes
from ..trials import memory_and_mixes as trials
from ..trials.calling import Called
from ..trials.plain import Seen
from .verdict import Wrong, exercise, few, is_number, is_tensor, largest_difference, values_of

CLOSE = 1e-4  # of the largest value, and of 1

SHARDS_SUM = (
    ". reduce_scatter_tensor leaves each rank the sum of its shard only, for half of what an "
    "all-reduce sends"
)
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


@exercise(on_clock=True, gives_a_value=False)
def zero_1(answer: Called) -> str:
    """`zero_1(whole, loss_of, make_optimizer, steps)`: trains `whole`, each rank its own shard.

    `whole` holds all parameters, one after the other, and is the same on every rank; its length is
    a multiple of their number. `loss_of(whole)` is the mean loss of this rank's share of the batch,
    `make_optimizer([shard])` an optimizer. At the end every rank's `whole` is what one device has
    after as many steps with the whole batch.
    """
    for n, name in ((2, "SGD with momentum"), (4, "Adam")):
        found = answer.tried(trials.zero_1, n, name)
        for rank, whole in enumerate(found["ends"]):
            _check_trained(whole, rank, n, name)
        _check_shards(found["given"], n)
        _check_exchanges(
            found["exchanges"], ["reduce_scatter", "all_gather"] * trials.STEPS, SHARDS_SUM
        )
        if found["full"]:
            raise Wrong(f"right numbers, but with a layer of 4 GB {found['full']}")
    return (
        f"after {trials.STEPS} steps all ranks have the parameters of one device, and each holds "
        f"the optimizer's state of 1/{n} of them. A reduce-scatter and an all-gather send as much "
        "as data parallelism's all-reduce"
    )


def _check_trained(whole: Seen, rank: int, n: int, name: str) -> None:
    begun, expected = trials.start(), _trained(name)
    where = f"{name}, rank {rank} of {n}"
    if _close(whole, expected):
        return
    if _close(whole, begun):
        raise Wrong(
            f"{where}: `whole` is as it was: write the new parameters into it, as in "
            "all_gather_into_tensor(whole.data, …)"
        )
    others = [i for i in range(n) if i != rank]
    parts, at_first = values_of(whole).chunk(n), begun.chunk(n)
    if len(parts) == n and all(_close(parts[i], at_first[i]) for i in others):
        raise Wrong(
            f"{where}: only its own shard has changed: before the next forward pass, every rank "
            "needs the shards that the others have updated"
        )
    if _close(whole, _trained(name, factor=n)):
        raise Wrong(
            f"{where}: expected {few(expected)}, got {few(whole)}: the gradients are a sum over "
            f"{n} ranks. Each is of a mean over a share, so divide by {n}"
        )
    if _close(whole, _trained(name, adds_up=True)):
        raise Wrong(
            f"{where}: expected {few(expected)}, got {few(whole)}: the gradients of earlier steps "
            "are still in the sum. Set whole.grad to None before each backward pass"
        )
    raise Wrong(
        f"{where}: expected {few(expected)}, got {few(whole)}. A rank's shard moves by the mean of "
        "all ranks' gradients *of this shard*"
    )


def _trained(name: str, *, factor: float = 1.0, adds_up: bool = False) -> torch.Tensor:
    """By a plain optimizer on one device, with the whole batch."""
    whole = trials.start().requires_grad_()
    optimizer = trials.OPTIMIZERS[name]([whole])
    for _ in range(trials.STEPS):
        if not adds_up:
            whole.grad = None
        (factor * trials.loss_of(whole, *trials.batch())).backward()
        optimizer.step()
    return whole.detach()


def _check_shards(given: list[int], n: int) -> None:
    numbers = trials.start().numel()
    if given != [numbers // n] * n:
        raise Wrong(
            f"right numbers, but the optimizers of {n} ranks got {given} parameters; expected "
            f"{numbers // n} of {numbers} each: what an optimizer is not given has no state"
        )


def _check_exchanges(got: list[str], expected: list[str], why: str = "") -> None:
    if sorted(got) != sorted(expected):
        told = f"{_listed(got)}; expected {_listed(expected)}"
        raise Wrong(f"right numbers, but the exchanges were {told}{why}")


def _listed(names: list[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{count} × {name}" for name, count in counts.items()) or "none"


def _close(got: torch.Tensor | Seen, expected: torch.Tensor) -> bool:
    return largest_difference(got, expected) <= CLOSE * max(1.0, expected.abs().max().item())


@exercise(on_clock=True)
def fsdp_forward(answer: Called) -> str:
    """`fsdp_forward(X, shard)`: X W, where each rank stores some rows of W, its shard.

    X is this rank's own batch. The whole W is there only while it is used.
    """
    for n in (2, 4):
        found = answer.tried(trials.fsdp_forward, n)
        W, Xs, _ = trials.layer(n)
        for rank, Y in enumerate(found["returned"]):
            _check_output(Y, rank, W, Xs)
        _check_exchanges(found["exchanges"], ["all_gather"])
        _check_freed(found, W.nbytes)
    return (
        "each rank has the outputs of its own batch, and stores its shard. The line shows the "
        "whole W come and go"
    )


def _check_output(Y: object, rank: int, W: torch.Tensor, Xs: list[torch.Tensor]) -> None:
    n, expected = len(Xs), Xs[rank] @ W
    where = f"rank {rank} of {n}"
    if not is_tensor(Y):
        raise Wrong(f"{where}: expected a tensor, got {Y!r}")
    if _close(Y, expected):
        return
    summands = [X.chunk(n, 1)[r] @ W.chunk(n)[r] for r, X in enumerate(Xs)]
    if _close(Y, torch.stack(summands).sum(0)):
        raise Wrong(
            f"{where}: these are sums of what ranks made of *different* batches. Splitting the "
            "product is channel parallelism, where all have the same X; here each rank needs the "
            "whole W for its own X"
        )
    raise Wrong(
        f"{where}: expected {few(expected)} of shape {list(expected.shape)}, got {few(Y)} of "
        f"shape {[*values_of(Y).shape]}. The shards are W's rows, rank 0 has the first"
    )


def _check_freed(found: dict[str, Any], whole_bytes: int) -> None:
    if found["left_bytes"] > whole_bytes / 2:
        raise Wrong(
            f"right numbers, but {found['left_bytes']:,} bytes are left besides the result, and "
            f"the whole W has {whole_bytes:,}: something still refers to it. A network of 100 "
            "layers would then hold 100 whole layers"
        )


@exercise(on_clock=True)
def fsdp_backward(answer: Called) -> str:
    """`fsdp_backward(X, shard, dY)`: the gradients (dX, dshard) of a layer whose W is in shards.

    dY is the gradient of this rank's outputs X W. dX = dY Wᵀ is this rank's own; dshard is the mean
    over all ranks of their Xᵀ dY, of which a rank gets the rows of its shard.
    """
    for n in (2, 4):
        found = answer.tried(trials.fsdp_backward, n)
        W, Xs, dYs = trials.layer(n)
        gradients = [X.t() @ dY for X, dY in zip(Xs, dYs, strict=True)]
        for rank, got in enumerate(found["returned"]):
            _check_both(got, rank, dYs[rank] @ W.t(), gradients)
        _check_exchanges(found["exchanges"], ["all_gather", "reduce_scatter"], SHARDS_SUM)
        _check_freed(found, W.nbytes)
    return (
        "each rank has the gradient of its own batch, and of its own shard the mean over all "
        "ranks. W was gathered again, because the forward pass has freed it"
    )


def _check_both(got: object, rank: int, dX: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    n = len(gradients)
    where = f"rank {rank} of {n}"
    if not (isinstance(got, tuple | list) and len(got) == 2 and all(map(is_tensor, got))):
        raise Wrong(f"{where}: expected two tensors, dX and dshard, got {got!r}")
    if not _close(got[0], dX):
        raise Wrong(f"{where}: in dX expected {few(dX)}, got {few(got[0])}: it is dY Wᵀ")
    total = torch.stack(gradients).sum(0)
    own, expected = total.chunk(n)[rank], total.chunk(n)[rank] / n
    if _close(got[1], expected):
        return
    why = f"the mean over {n} ranks of Xᵀ dY, its rows of this shard"
    if _close(got[1], own):
        why = f"this is the sum over {n} ranks: divide by {n}"
    elif _close(got[1], gradients[rank].chunk(n)[rank]):
        why = "this is what the rank's own batch says, without the others'"
    elif values_of(got[1]).shape == total.shape:
        why = "this is of the whole W: a rank stores only its shard, and so only its gradient"
    raise Wrong(f"{where}: in dshard expected {few(expected)}, got {few(got[1])}: {why}")
