"""What a rank of the toy machine has, shard by shard: weights and which steps they have taken,
gradients and which batches are in them, activations, and what is handed on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .job import Job

Sum = Counter  # of batches: how often each one's gradient is in a sum
Steps = tuple[tuple[tuple[int, int], ...], ...]  # of each step the batches, and how often each
OUTPUT, ERROR = "output", "gradient of the output"


def step_of(batches: Sum) -> tuple[tuple[int, int], ...]:
    """A step by what it has summed."""
    return tuple(sorted(batches.items()))


@dataclass
class State:
    """What a rank has.

    `weights[layer]` lists, for each shard, the steps that it has taken; None is not here.
    `gradients[layer]` lists the sum of each shard; a layer that has none is not in it. `shards`
    holds the rank's own shard of a sum over ranks.
    """

    job: Job
    rank: int
    weights: dict[int, list[Steps | None]] = field(default_factory=dict)
    gradients: dict[int, list[Sum]] = field(default_factory=dict)
    shards: dict[int, Sum] = field(default_factory=dict)
    activations: dict[tuple[int, int], Steps] = field(default_factory=dict)
    held: set[tuple[str, int, int]] = field(default_factory=set)  # what is handed on
    newest: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # by batch

    def __post_init__(self) -> None:
        for layer in self.job.layers_of(self.rank):
            own = self.own_shard
            self.weights[layer] = [
                () if shard == own or not self.job.weights_in_shards else None
                for shard in range(self.job.shards)
            ]

    @property
    def own_shard(self) -> int:
        """The number of the shard that is this rank's."""
        return 0 if self.job.pipeline else self.rank

    def is_whole(self, layer: int) -> bool:
        """Whether all shards of a layer's weights are here."""
        return None not in self.weights[layer]
