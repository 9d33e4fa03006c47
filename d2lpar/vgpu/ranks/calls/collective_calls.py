"""What ranks exchange in a collective: what each gives to whom, what it takes, and the arithmetic.

Every collective is one of two things. Values move: each rank takes what others give it. Or they
are reduced: a rank takes the sum (mean, …) of what all give it, added up in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch.distributed import ReduceOp

from ...races.call_sites import CallSite, Mark, call_site_of
from ...torch_backend.tensors.tensor import VirtualTensor, backing, check_allocated
from ...torch_backend.values.reduced_values import PAIRS, reduced
from .data_types import check_reduced

Pieces = Sequence[torch.Tensor | None]  # plain tensors with the values, flat
_OF_HOST = ("BAND", "BOR", "BXOR")  # which NCCL does not have


@dataclass
class CollectiveCall:
    """One rank's part in a collective: the tensors that it `reads` and `writes`.

    `gives[i]` is for rank i of the group; `takes[i]` is filled by what rank i gives, or, if there
    is an `op`, `takes[0]` by the reduced. `nbytes` is the size of the whole, `root` the group's
    rank that it starts from or goes to. `same` is what else all ranks must agree on. `called_at` is
    the line of the program's that called. One with `parts` does these, and has nothing to give or
    to take besides.
    """

    name: str
    reads: Sequence[torch.Tensor] = ()
    writes: Sequence[torch.Tensor] = ()
    gives: Pieces = ()
    takes: Pieces = ()
    nbytes: int = 0
    op: str | None = None
    root: int | None = None
    same: object = None
    parts: Sequence[CollectiveCall] = ()
    called_at: Mark | CallSite | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that it reads or writes, each once."""
        return list({id(tensor): tensor for tensor in (*self.reads, *self.writes)}.values())

    @property
    def is_read(self) -> bool:
        """Whether it takes something, or has no tensors."""
        return bool(self.writes) or not self.reads

    @property
    def given_nbytes(self) -> int:
        """The bytes of what it reads."""
        return sum(tensor.nbytes for tensor in self.reads)

    @property
    def taken_nbytes(self) -> int:
        """The bytes of what it writes."""
        return sum(tensor.nbytes for tensor in self.writes)

    @property
    def kind(self) -> tuple:
        """What must be equal on all ranks."""
        kinds = {(t.dtype, isinstance(t, VirtualTensor)) for t in self.tensors}
        return (self.name, self.op, self.root, self.same, *kinds)

    def __str__(self) -> str:
        parts = [_described(tensor) for tensor in self.tensors[:2]]
        parts += [] if self.op is None else [self.op]
        parts += [] if self.root is None else [f"root {self.root}"]
        return f"{self.name}({', '.join(parts)})"

    def by(self, rank: int) -> str:
        """Who calls it where: "rank 1 called at train.py:12"."""
        return f"rank {rank} called at {call_site_of(self.called_at)}"


def _described(tensor: torch.Tensor) -> str:
    place = "" if isinstance(tensor, VirtualTensor) else " of the host"
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{place}"


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a contiguous tensor, flat, as memory has them; on `meta` if there are none."""
    if isinstance(tensor, VirtualTensor):
        check_allocated(tensor)
        tensor = backing(tensor)
    return flat(tensor.detach())


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory in its own order, which may be that of channels last."""
    return tensor.as_strided((tensor.numel(),), (1,))


def together(name: str, parts: Sequence[CollectiveCall]) -> CollectiveCall:
    """Several calls as one, which takes the time of one with the bytes of all."""
    return CollectiveCall(
        name,
        [tensor for part in parts for tensor in part.reads],
        [tensor for part in parts for tensor in part.writes],
        nbytes=sum(part.nbytes for part in parts),
        same=tuple(part.kind for part in parts),
        parts=parts,
    )


def op_name(op: object, tensor: torch.Tensor) -> str:
    """The name of a ReduceOp. Raises ValueError for one that NCCL does not have, and for tensors of
    a device only, NotImplementedError for others that virtual ranks do not have, and what
    `check_reduced` does."""
    name = next((name for name in PAIRS if op == getattr(ReduceOp, name)), None)
    on_device = isinstance(tensor, VirtualTensor)
    if name is not None and not (on_device and name in _OF_HOST):
        check_reduced(name, tensor)
        return name
    known = [name for name in PAIRS if name not in _OF_HOST]
    text = (
        f"virtual ranks reduce by {', '.join(known)}, and on the host by {', '.join(_OF_HOST)}, "
        f"not tensors on {tensor.device} by {_named(op)}"
    )
    if name is not None:
        raise ValueError(f"Cannot use ReduceOp.{name} with NCCL: {text}")
    raise NotImplementedError(text)


def _named(op: object) -> str:
    names = ReduceOp.RedOpType.__members__
    return next((name for name in names if op == getattr(ReduceOp, name)), str(op))


def reduced_by(op: object, values: torch.Tensor) -> torch.Tensor:
    """What a rank gives to a reduction by `op`: PREMUL_SUM has a factor for it.

    Raises NotImplementedError where this torch keeps the factor to itself.
    """
    if op != ReduceOp.PREMUL_SUM:
        return values
    factor = getattr(op, "factor", None)
    if factor is None:
        raise NotImplementedError(
            f"torch {torch.__version__} does not tell the factor of PREMUL_SUM: multiply before "
            "the collective, and use SUM"
        )
    if isinstance(factor, VirtualTensor):
        factor = backing(factor)
    return values * factor


@torch.no_grad()
def carry_out(calls: Sequence[CollectiveCall], takers: Collection[int]) -> None:
    """Compute what of the calls of all ranks, in their order, those of `takers` take.

    Raises ValueError if a rank gives more or fewer elements than the other takes. Tensors that have
    a shape only stay as they are.
    """
    if calls and calls[0].parts:
        for parts in zip(*(call.parts for call in calls), strict=True):
            carry_out(parts, takers)
        return
    totals: dict[tuple[int, ...], torch.Tensor] = {}
    moves: list[tuple[torch.Tensor, torch.Tensor]] = []
    for rank in takers:
        call = calls[rank]
        if call.op is None:
            moves += _moves(calls, rank)
        elif call.takes:
            given = [_given(other, rank) for other in calls]
            key = tuple(map(id, given))
            if key not in totals:
                totals[key] = reduced(call.op, given)
            (taken,) = (values for values in call.takes if values is not None)
            moves.append((taken, totals[key]))
    for target, source in moves:
        if not (target.is_meta or source.is_meta):
            target.copy_(source)


def _given(call: CollectiveCall, rank: int) -> torch.Tensor:
    values = call.gives[rank]
    assert values is not None, f"{call} gives rank {rank} in the group what it takes"
    return values


def _moves(calls: Sequence[CollectiveCall], rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What a rank takes, and what it is given for it."""
    found = []
    for giver, taken in enumerate(calls[rank].takes):
        if taken is None:
            continue
        given = _given(calls[giver], rank)
        if given.numel() != taken.numel():
            raise ValueError(
                f"{calls[rank]} of rank {rank} in the group expects {taken.numel()} elements of "
                f"rank {giver}, whose {calls[giver]} gives it {given.numel()}"
            )
        found.append((taken, given))
    return found
