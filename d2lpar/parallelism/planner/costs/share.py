"""One rank's share of a layer and of a micro-batch, by which its simulation is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..layout import Layout
from ..transformer import Transformer


@dataclass(frozen=True)
class Share:
    """One of `tensor` ranks has heads and columns, one of `context` ranks tokens of each sample,
    one of `expert` ranks experts. `model` is one layer, whatever else it is part of."""

    model: Transformer
    micro_batch: int
    tensor: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    attention: str = "scores"
    precision: str = "fp16"
    compiled: bool = False

    @property
    def sequence(self) -> int:
        """Tokens of a sample that this rank's context group leaves to it."""
        return -(-self.model.sequence // self.context)

    @property
    def tokens(self) -> int:
        """Of a sample, those whose norms and dropout this rank computes."""
        return -(-self.sequence // self.tensor) if self.sequence_parallel else self.sequence

    @property
    def words(self) -> int:
        """Words that this rank scores."""
        return self.model.words_per_rank(self.tensor)

    @property
    def expert_rows(self) -> int:
        """Rows that each expert of this rank takes; 0 without experts."""
        experts = self.model.experts
        if experts is None:
            return 0
        sent = self.micro_batch * self.sequence * experts.top_k * self.expert
        return max(round(sent / experts.count), 1)


def share_of(model: Transformer, layout: Layout) -> Share:
    """What one rank has of a layer and of a micro-batch."""
    mesh = layout.mesh
    return Share(
        replace(model, name="one layer", layers=1, source=""),
        layout.micro_batch,
        mesh.tensor,
        mesh.context,
        layout.expert,
        layout.sequence_parallel and mesh.tensor > 1,
        layout.attention,
        layout.precision,
        layout.compiled,
    )


def activation_bytes(model: Transformer, layout: Layout) -> int:
    """A micro-batch's activations between two layers."""
    tokens = layout.micro_batch * -(-model.sequence // layout.mesh.context)
    return tokens * model.hidden * layout.number_bytes
