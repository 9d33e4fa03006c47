"""What is asked of a plan: the machine, the batch, and the settings that are not left open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...machines.hardware import Accelerator, Machine
from ...timeline.inputs import Count, Positive, check_fields
from .config import ModelConfig

SEQUENCE, PROMPT, NEW = 4096, 1024, 256  # tokens, where a model reads as many
AXES = ("data", "pipeline", "tensor")
OPEN = ("zero", "recompute", "micro_batch", *AXES)  # settings of training that may be left open


@dataclass(frozen=True)
class Wanted:
    """A plan for `batch` samples a step (or texts at once) on the first `gpus` of a machine.

    What is None is left to the planner. `sequence` are tokens of a sample, of inference those of a
    prompt, to which `new` ones are written; `eager` takes a program of plain PyTorch, else kernels
    are fused and launched as CUDA graphs, as serving engines do.
    """

    machine: Machine
    batch: Count
    gpus: Count
    sequence: Count
    precision: str
    zero: int | None = None
    recompute: str | None = None
    micro_batch: Count | None = None
    data: Count | None = None
    pipeline: Count | None = None
    tensor: Count | None = None
    compiled: bool = False
    optimizer: str = "adam"
    attention: str = "fused"
    new: Count = NEW
    eager: bool = False
    price: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def accelerator(self) -> Accelerator:
        """The GPUs, which are all alike."""
        return self.machine.accelerators[0]

    @property
    def given(self) -> dict[str, object]:
        """Of the settings that may be left open those that are not."""
        return {name: value for name in OPEN if (value := getattr(self, name)) is not None}

    def opened(self, *names: str) -> Wanted:
        """The same with these settings left to the planner."""
        changes: dict[str, Any] = dict.fromkeys(names)
        return replace(self, **changes)

    def is_mesh(self, data: int, pipeline: int, tensor: int) -> bool:
        """Whether a mix has the degrees that are asked for."""
        return all(
            wanted in (None, degree)
            for wanted, degree in zip(
                (self.data, self.pipeline, self.tensor), (data, pipeline, tensor), strict=True
            )
        )


def usual_precision(accelerator: Accelerator) -> str:
    """The half precision that the card has: bf16 before fp16, else fp32."""
    for dtype, name in (("bfloat16", "bf16"), ("float16", "fp16")):
        rate = accelerator.flops_per_s.get(dtype, 0.0)
        if rate > accelerator.rate("float32"):
            return name
    return "fp32"


def sequence_of(config: ModelConfig, given: int | None, *, inference: bool) -> int:
    """Tokens of a sample, or of a prompt, where none are `given`."""
    return config.sequence(given, PROMPT if inference and not config.encoder else SEQUENCE)
