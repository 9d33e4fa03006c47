"""Uneven inputs under DistributedDataParallel: a rank without batches shadows what others exchange.

The order is torch's: the context manager `Join` counts who is left, then come, as in a forward
pass, buckets that are sorted anew, buffers, and whether gradients are averaged; then the buckets.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from .reducer import Reducer


class Averaged(Protocol):
    """A DistributedDataParallel, as far as it is shadowed."""

    process_group: Any
    device: torch.device
    reducer: Reducer
    divides_by_all: bool
    find_unused_parameters: bool
    static_graph: bool
    require_backward_grad_sync: bool
    require_forward_param_sync: bool

    def rebuild_buckets(self) -> None:
        """Sort buckets anew, once."""

    def broadcasts_buffers_now(self) -> bool:
        """Whether a forward pass would begin with the buffers of one rank."""
        ...

    def broadcast_buffers_from(self, rank: int) -> None:
        """Give buffers the values of a rank."""

    def broadcast_state_from(self, rank: int) -> None:
        """Give parameters and buffers the values of a rank."""


class DDPJoinHook(JoinHook):
    """What a rank does that has no batches any more, while others have."""

    def __init__(self, ddp: Averaged, *, divide_by_initial_world_size: bool) -> None:
        ddp.divides_by_all = divide_by_initial_world_size
        self._ddp = ddp

    def main_hook(self) -> None:
        """Take part in one step of the others."""
        ddp = self._ddp
        ddp.rebuild_buckets()
        if ddp.broadcasts_buffers_now():
            ddp.broadcast_buffers_from(agreed_rank(ddp, candidate=False))
        ddp.require_forward_param_sync = averages = agree_to_average(ddp, joined=True)
        if averages:
            ddp.reducer.shadow(looks=ddp.find_unused_parameters and not ddp.static_graph)

    def post_hook(self, is_last_joiner: bool) -> None:
        """All get the parameters and buffers of a rank that took the last step."""
        self._ddp.broadcast_state_from(agreed_rank(self._ddp, candidate=is_last_joiner))


def agreed_rank(ddp: Averaged, *, candidate: bool) -> int:
    """The highest rank of the group among candidates, of which there must be one."""
    rank = dist.get_rank(ddp.process_group) if candidate else -1
    highest = torch.tensor([rank], device=ddp.device)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=ddp.process_group)
    return int(highest.item())


def agree_to_average(ddp: Averaged, *, joined: bool) -> bool:
    """Tell ranks without batches whether this step averages gradients (it does not under
    `no_sync`); for them, the answer."""
    says_yes = float(not joined and ddp.require_backward_grad_sync)
    answer = torch.full((1,), says_yes, device=ddp.device)
    work = dist.all_reduce(answer, group=ddp.process_group, async_op=True)
    if not joined:
        return ddp.require_backward_grad_sync
    assert work is not None, "a member of the group waits"
    work.wait()
    return bool(answer.item())
