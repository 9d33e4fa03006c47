"""A plan: a mix with its settings, and what they come to in time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...timeline.formatting import bytes_text, seconds_text
from . import messages
from .costs.memory_model import Memory
from .costs.steps import StepTime
from .layout import Layout
from .mesh import Mesh
from .transformer import Transformer


@dataclass(frozen=True)
class Plan:
    """A mix with its best settings, and what they come to.

    `capacity_bytes` is what a GPU has for use, `peak_flops_per_s` its rate of products. `step` and
    `memory` have `parts`. `uncertainty` is the share by which such steps are typically off.
    """

    model: Transformer
    machine: str
    node_size: int
    layout: Layout
    step: StepTime
    memory: Memory
    capacity_bytes: float
    peak_flops_per_s: float
    uncertainty: float

    @property
    def mesh(self) -> Mesh:
        """The mix itself."""
        return self.layout.mesh

    @property
    def fits(self) -> bool:
        """Whether a GPU can hold it."""
        return self.memory_bytes <= self.capacity_bytes

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
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
        """Samples a second, over all GPUs."""
        return self.layout.samples / self.step_s

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of one GPU, without what is computed again."""
        return self.model.flops(self.layout.samples) / self.step_s / self.mesh.size

    @property
    def model_flops_utilisation(self) -> float:
        """The share of the GPUs' peak that these are (Chowdhery et al. 2022)."""
        return self.flops_per_s / self.peak_flops_per_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, over all GPUs."""
        return self.samples_per_s * self.model.sequence

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens a second of one GPU."""
        return self.tokens_per_s / self.mesh.size

    @property
    def settings(self) -> str:
        """Those that matter to this mix, in words."""
        layout = self.layout
        said = [messages.MICRO_BATCHES.format(count=layout.micro_batches, size=layout.micro_batch)]
        if layout.mesh.pipeline > 1:
            said.append(messages.SCHEDULES[layout.schedule].format(chunks=layout.chunks))
        said.append(messages.RECOMPUTE[layout.recompute])
        if layout.zero:
            said.append(messages.ZERO.format(stage=layout.zero))
        return ", ".join(said)

    def __str__(self) -> str:
        return messages.PLAN.format(
            mesh=self.mesh,
            how=self.settings,
            step=seconds_text(self.step_s),
            uncertainty=self.uncertainty,
            tflops=self.flops_per_s / 1e12,
            memory=bytes_text(self.memory_bytes),
            verdict="" if self.fits else messages.DOES_NOT_FIT,
        )
