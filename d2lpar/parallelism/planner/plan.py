"""A plan: a mix with its settings, and what they come to in time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from . import explanation
from .layout import Layout
from .memory_model import Memory
from .mesh import Mesh
from .steps import StepTime
from .transformer import Transformer


@dataclass(frozen=True)
class Plan:
    """A mix with its best settings, and what they come to.

    `capacity_bytes` is what a GPU has for use. `step` and `memory` have `parts`.
    """

    model: Transformer
    machine: str
    node_size: int
    layout: Layout
    step: StepTime
    memory: Memory
    capacity_bytes: float

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.capacity_bytes

    @property
    def step_s(self) -> float:
        return self.step.step_s

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the step by what they are for."""
        return self.step.parts

    @property
    def memory_bytes(self) -> float:
        """Of the fullest GPU."""
        return self.memory.total_bytes

    @property
    def samples_per_s(self) -> float:
        return self.layout.samples / self.step_s

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of one GPU, without what is computed again."""
        return self.model.flops(self.layout.samples) / self.step_s / self.mesh.size

    def __str__(self) -> str:
        return explanation.one_line(self)
