"""The figures of a plan: whether a model fits, how long it takes, what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...machines.prices import Price
from .. import planner
from . import inference, training
from .config import ModelConfig
from .inference import Serving
from .wanted import Wanted

BILLION = 1e9
_WEIGHTS = {"parameters": "weights", "working": "work in progress"}


@dataclass(frozen=True)
class Figures:
    """What a model takes on a machine: simulated times, and memory, of one GPU.

    `training` is the planner's plan of a step, or `serving` what inference comes to; the other is
    None. `units` are tokens, or images.
    """

    config: ModelConfig
    model: planner.Transformer
    wanted: Wanted
    price: Price | None
    training: planner.Plan | None = None
    serving: Serving | None = None

    @property
    def parameters(self) -> int:
        """Weights and biases in all."""
        return self.model.parameters

    @property
    def active_parameters(self) -> int:
        """Those that a token meets: of experts only the chosen ones."""
        return self.model.active_parameters

    @property
    def memory(self) -> dict[str, float]:
        """Bytes of the fullest GPU by what they are for."""
        if self.serving is not None:
            return self.serving.memory
        parts = self._training.memory.parts
        return {_WEIGHTS.get(name, name): nbytes for name, nbytes in parts.items()}

    @property
    def memory_bytes(self) -> float:
        """Of the fullest GPU."""
        return sum(self.memory.values())

    @property
    def capacity_bytes(self) -> float:
        """What a GPU has for use; the rest is for CUDA and NCCL."""
        return planner.USABLE * self.wanted.accelerator.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether a GPU can hold it."""
        return self.memory_bytes <= self.capacity_bytes

    @property
    def step_s(self) -> float:
        """Seconds of a training step; of inference until all is read and written."""
        return self._training.step_s if self.serving is None else self.serving.total_s

    @property
    def uncertainty(self) -> float:
        """The share by which such times are typically off."""
        return self._training.uncertainty if self.serving is None else inference.UNCERTAINTY

    @property
    def units_per_s(self) -> float:
        """Tokens a second over all GPUs (images of a ViT): trained on, or written."""
        if self.serving is None:
            rate = self._training.samples_per_s
            return rate if self.config.fixed else rate * self.model.sequence
        samples_per_s = self.serving.units_per_s
        reads_texts = self.config.encoder and not self.config.fixed
        return samples_per_s * self.model.sequence if reads_texts else samples_per_s

    @property
    def utilisation(self) -> float | None:
        """The share of the GPUs' peak that a training step reaches; None of inference."""
        return None if self.training is None else self.training.model_flops_utilisation

    @cached_property
    def bound(self) -> str:
        """What it waits for most, in words."""
        if self.serving is not None:
            return self.serving.bound
        return training.bound_of(self._training, self.wanted)

    @property
    def usd_per_h(self) -> float | None:
        """Dollars an hour of all GPUs; None without a price."""
        return None if self.price is None else self.price.usd_per_gpu_h * self.wanted.gpus

    @property
    def usd_per_billion(self) -> float | None:
        """Dollars for a billion tokens, or images."""
        if (usd_per_h := self.usd_per_h) is None:
            return None
        return usd_per_h / 3600 / self.units_per_s * BILLION

    @cached_property
    def remedies(self) -> list[str]:
        """What would make it fit, each computed; nothing where it fits."""
        if self.fits:
            return []
        if self.serving is not None:
            return inference.remedies(self.config, self.model, self.wanted)
        return training.remedies(self.model, self.wanted, fixed=self.config.fixed)

    @property
    def _training(self) -> planner.Plan:
        assert self.training is not None
        return self.training
