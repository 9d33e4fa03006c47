"""Whether all ranks have made the same network, asked through a group that a program has written.

As torch's DDP asks: it gathers how many parameters each rank has, and has the sizes and strides of
the first rank's broadcast, in tensors on the parameters' device. So the group must do both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist

from . import c10d_private

_REMEDY = "make the same network on each rank"


def check_by_group(named: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """RuntimeError, with the words of torch's, if the parameters are not those of the first rank,
    or if another rank has more or fewer."""
    group = group or c10d_private.default_group()
    rank, device = group.rank(), next(iter(named.values())).device
    _check_counts(rank, len(named), device, group)
    mine = [n for parameter in named.values() for _, found in _layout(parameter) for n in found]
    first = torch.tensor(mine, dtype=torch.int64, device=device)
    dist.broadcast(first, group_src=0, group=group)
    theirs = iter(first.tolist())
    for i, (name, parameter) in enumerate(named.items()):
        for what, found in _layout(parameter):
            expected = [next(theirs) for _ in found]
            if found != expected:
                raise RuntimeError(
                    f"[{rank}]: params[{i}] in this process, {name}, with {what} {found} appears "
                    f"not to match {what} of the same param in process 0: {_REMEDY}"
                )


def _check_counts(rank: int, mine: int, device: torch.device, group: dist.ProcessGroup) -> None:
    count = torch.tensor([mine], dtype=torch.int64, device=device)
    counts = [torch.empty_like(count) for _ in range(group.size())]
    dist.all_gather(counts, count, group=group)
    for other, found in enumerate(counts):
        if int(found) != mine:
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {rank} has {mine} params, "
                f"while rank {other} has inconsistent {int(found)} params: {_REMEDY}"
            )


def _layout(parameter: torch.Tensor) -> Iterator[tuple[str, list[int]]]:
    yield "sizes", list(parameter.size())
    yield "strides", list(parameter.stride())
