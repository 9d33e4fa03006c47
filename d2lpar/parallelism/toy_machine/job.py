"""What is trained on the toy machine, what lies where at the start, and what it all costs."""

from __future__ import annotations

from dataclasses import dataclass

# Of one layer: a pass of a batch, an exchange of all its numbers, a step of the optimizer.
FORWARD_MS, BACKWARD_MS, EXCHANGE_MS, UPDATE_MS = 2.0, 4.0, 2.0, 2.0
# Of one layer: Adam keeps two numbers for each weight. An activation is that of one batch.
WEIGHTS_GB, GRADIENT_GB, STATES_GB, ACTIVATION_GB = 4.0, 4.0, 8.0, 2.0


@dataclass(frozen=True)
class Job:
    """Layers and batches on some ranks.

    `pipeline`: each rank has some of the layers and sees all batches; otherwise each has all layers
    and some of the batches, in turn. `states_in_shards` and `weights_in_shards` say what each rank
    has only one share of: without a pipeline, its own, out of as many as there are ranks.
    `capacity_gb` is the memory of each rank.
    """

    ranks: int
    layers: int
    batches: int
    capacity_gb: float
    pipeline: bool = False
    states_in_shards: bool = False
    weights_in_shards: bool = False

    @property
    def shards(self) -> int:
        """The parts that a layer can be cut into: one for each rank that has it."""
        return 1 if self.pipeline else self.ranks

    def layers_of(self, rank: int) -> range:
        """Those that a rank has."""
        if not self.pipeline:
            return range(self.layers)
        each = self.layers // self.ranks
        return range(rank * each, (rank + 1) * each)

    def batches_of(self, rank: int) -> range:
        """Those that a rank sees."""
        return range(self.batches) if self.pipeline else range(rank, self.batches, self.ranks)

    def start_gb(self, rank: int) -> float:
        """What a rank holds before it begins: weights and the optimizer's states."""
        weights = WEIGHTS_GB / (self.shards if self.weights_in_shards else 1)
        states = STATES_GB / (self.shards if self.states_in_shards else 1)
        return len(self.layers_of(rank)) * (weights + states)
