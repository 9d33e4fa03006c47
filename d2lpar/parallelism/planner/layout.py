"""How a model is spread and trained: the mesh, micro-batches, what is kept, sharded, recomputed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from .mesh import Mesh

RECOMPUTE = ("none", "selective", "full")
ATTENTION = ("scores", "fused")
ZERO = (0, 1, 2, 3)


class Settings(TypedDict):
    """What a search leaves as it is given: see `Layout`."""

    sequence_parallel: bool
    overlap: bool
    attention: str
    gradient_bytes: int


@dataclass(frozen=True)
class Layout:
    """A replica does `micro_batches` of `micro_batch` samples each in a step.

    `chunks`: each stage has so many pieces of the net; more than one means the interleaved schedule
    (Narayanan et al. 2021), else it is 1F1B. `recompute`: for the backward pass nothing is computed
    again, or the attention between its products ("selective"), or all layers ("full"; Korthikanti
    et al. 2022). `sequence_parallel`: norms and dropout, too, are split over the tensor ranks
    (the same). `zero`: replicas share the optimizer's state (1), gradients (2), parameters (3;
    Rajbhandari et al. 2020). `overlap`: exchanges between replicas go on beside the computing.
    `attention` keeps its "scores" or is one "fused" kernel. Gradients are kept and added up in
    `gradient_bytes` each.

    Raises ValueError for what is not of these.
    """

    mesh: Mesh
    micro_batch: int = 1
    micro_batches: int = 1
    chunks: int = 1
    recompute: str = "none"
    sequence_parallel: bool = False
    zero: int = 0
    overlap: bool = True
    attention: str = "scores"
    gradient_bytes: int = 2

    def __post_init__(self) -> None:
        choices = {
            "recompute": RECOMPUTE,
            "attention": ATTENTION,
            "zero": ZERO,
            "gradient_bytes": (2, 4),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} is one of {', '.join(map(str, allowed))}, not {value!r}")
        for name in ("micro_batch", "micro_batches", "chunks"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ValueError(f"{name} is a whole number from 1 on, not {value!r}")
        if self.zero > 1 and self.mesh.pipeline > 1:
            raise ValueError(
                f"ZeRO stage {self.zero} exchanges gradients with each micro-batch, which undoes a "
                "pipeline's: take pipeline 1, or stage 0 or 1 (DeepSpeed refuses it, too)"
            )

    @property
    def samples(self) -> int:
        """Samples of a step, over all replicas."""
        return self.micro_batch * self.micro_batches * self.mesh.data

    @property
    def settings(self) -> Settings:
        """Those of the fields that a search does not change."""
        return {
            "sequence_parallel": self.sequence_parallel,
            "overlap": self.overlap,
            "attention": self.attention,
            "gradient_bytes": self.gradient_bytes,
        }

    @property
    def schedule(self) -> str:
        """Of the pipeline: "1F1B" or "interleaved"."""
        return "interleaved" if self.chunks > 1 else "1F1B"
