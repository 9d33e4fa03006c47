"""Random numbers of DTensors on virtual ranks: replicas draw the same, shards draw their own.

On CUDA, DTensor lets each shard begin elsewhere in one sequence, which a counter makes possible
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Virtual devices draw from a
sequence without a counter. So a shard draws from a sequence of its own, made from the common one
and the number of the shard, and afterwards all ranks go on from one place again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ...torch_backend.machine.random_sequence import RandomSequence
from ...torch_backend.module.generators import handle_of
from ..world.rank import here

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
        sequence = rt.sequence(rank.device)
        state = sequence.state().to(f"vgpu:{rank.device}")
        dist.broadcast(state, 0)
        sequence.set_state(state)

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
        of_device = rt.sequence(device)
        common = _sequence_of(generator, of_device)
        rt.set_sequence(device, common.branch(shard or 0))
        try:
            yield
        finally:
            rt.set_sequence(device, of_device)
            common.jump(_AFTERWARDS)
            if generator is not None and handle_of(generator) is None:
                generator.set_state(common.host)


def _sequence_of(generator: torch.Generator | None, of_device: RandomSequence) -> RandomSequence:
    """What all ranks draw from: the device's numbers, or those of the generator that is given."""
    if generator is None:
        return of_device
    handle = handle_of(generator)
    if handle is not None:
        return handle.sequence
    sequence = RandomSequence(generator.initial_seed())
    sequence.host = generator.get_state()
    return sequence


def _shard_number(spec: Any) -> int | None:
    """The same for replicas, and other numbers for other shards; None if there is one shard."""
    mesh, number, count = spec.mesh, 0, 1
    for i, placement in enumerate(spec.placements):
        if placement.is_shard():
            number = number * mesh.size(i) + mesh.get_coordinate()[i]
            count *= mesh.size(i)
    return number if count > 1 else None
