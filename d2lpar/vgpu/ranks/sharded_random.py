"""Random numbers of DTensors on virtual ranks: replicas draw the same, shards draw their own.

On CUDA, DTensor lets each shard begin elsewhere in one sequence, which a counter makes possible
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Virtual devices draw from a
sequence without a counter. So a shard begins a sequence of its own, made from the common state and
the number of the shard, and afterwards all ranks go on from one state again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .rank import here

_AFTERWARDS = -1  # stands for the number of a shard in what follows on all ranks


class ShardedRandomNumbers:
    """Takes the place of torch's `OffsetBasedRNGTracker`: DTensor asks it to surround an operation
    that draws."""

    def __init__(self, device_mesh: object, run_state_sync: bool = True) -> None:
        self.distribute_region_enabled = True
        if run_state_sync:
            self._take_state_of_rank_0()

    def _take_state_of_rank_0(self) -> None:
        rank = here.rank
        rt = rank.world.rt
        state = rt.random_state(rank.device).to(f"vgpu:{rank.device}")
        dist.broadcast(state, 0)
        rt.set_random_state(rank.device, state.cpu())

    def _manual_seed(self, parallel_seed: int) -> None:
        torch.manual_seed(parallel_seed)

    @contextmanager
    def _distribute_region(
        self, spec: Any, generator: torch.Generator | None = None
    ) -> Iterator[None]:
        """Let the block draw what belongs to this rank's shard of a tensor that is laid out so."""
        rt, device = here.rank.world.rt, here.rank.device
        shard = _shard_number(spec)
        if not self.distribute_region_enabled or (shard is None and generator is None):
            yield
            return
        of_device = rt.random_state(device)
        common = of_device if generator is None else generator.get_state()
        rt.set_random_state(device, _begun_anew(common, shard or 0))
        try:
            yield
        finally:
            afterwards = _begun_anew(common, _AFTERWARDS)
            if generator is not None:
                generator.set_state(afterwards)
            rt.set_random_state(device, afterwards if generator is None else of_device)


def _shard_number(spec: Any) -> int | None:
    """The same for replicas, and other numbers for other shards; None if there is one shard."""
    mesh, number, count = spec.mesh, 0, 1
    for i, placement in enumerate(spec.placements):
        if placement.is_shard():
            number = number * mesh.size(i) + mesh.get_coordinate()[i]
            count *= mesh.size(i)
    return number if count > 1 else None


def _begun_anew(state: torch.Tensor, number: int) -> torch.Tensor:
    """The state of a sequence of its own for each state and number."""
    text = state.numpy().tobytes() + str(number).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1  # torch's seeds are signed
    return torch.Generator().manual_seed(seed).get_state()
