"""How a model is spread and trained: the mesh, micro-batches, what is kept, sharded, recomputed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from ...timeline.inputs import beyond, check_fields, is_count
from .frameworks import FRAMEWORKS
from .mesh import Mesh
from .optimizers import OPTIMIZERS, Recipe, recipe
from .precision import PRECISIONS

RECOMPUTE = ("none", "selective", "full")  # those that a search tries
ALTERNATE = "alternate"
ATTENTION = ("scores", "fused", "flash")
ZERO = (0, 1, 2, 3)
GATHERS = ("layers", "tensors")


class Settings(TypedDict):
    """What a search leaves as it is given: see `Layout`."""

    sequence_parallel: bool
    overlap: bool
    attention: str
    gradient_bytes: int
    precision: str
    compiled: bool
    optimizer: str


@dataclass(frozen=True)
class Layout:
    """A replica does `micro_batches` of `micro_batch` samples each in a step.

    `chunks`: each stage has so many pieces of the net; more than one means the interleaved schedule
    (Narayanan et al. 2021), else it is 1F1B. `recompute`: for the backward pass nothing is computed
    again, or the attention between its products ("selective"; if it is fused and keeps no scores,
    everything but attention and every second product, as torchtitan's selective checkpointing), or
    every second layer ("alternate"), or all of them ("full"; Korthikanti et al. 2022).
    `sequence_parallel`: norms and dropout, too, are split over the tensor ranks (the same). `zero`:
    replicas share the optimizer's state (1), gradients (2), parameters (3; Rajbhandari et al.
    2020). `overlap`: exchanges between replicas go on beside the computing. `attention` keeps its
    "scores" or is one "fused" kernel: the one that torch chooses, or FlashAttention 2's ("flash"),
    which Hopper has known longer than cuDNN's. Gradients take `gradient_bytes` each, or as many as
    parameters if these take more.

    `shard`: so many neighbouring replicas share what `zero` says, and only gradients are summed
    over all (HSDP, Zhao et al. 2023); None: all of them share. `gathers`: with ZeRO 3 parameters
    come "layers" at a time, ahead of their use (PyTorch's FSDP), or as single "tensors" when they
    are used (DeepSpeed of 2021). `expert`: so many neighbouring replicas share the experts of a
    layer and send them their tokens (Lepikhin et al. 2020). Ranks of a context gather all keys and
    values before they attend (Llama 3). `precision` is that of products, which with
    "…-autocast" are cast to it while everything else stays fp32; `compiled`: what lies
    between them is one kernel, `optimizer` one of those that `optimizers` knows. The loss is
    computed in `loss_chunks` pieces. Samples are `batch_first` in memory as torch has them, not
    tokens as Megatron does: see `steps`. `tensor_overlap`: sums of activations go on beside the
    products that they belong to, piece by piece (Transformer Engine's userbuffers, torch's async
    tensor parallelism). `fused_gradients`: products add the gradients of micro-batches up as they
    make them (Megatron-LM's gradient_accumulation_fusion), else kernels of their own do.
    `framework` is the one whose Python the host goes through: "torch" or "megatron".

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
    precision: str = "fp16"
    compiled: bool = False
    optimizer: str = "adam"
    expert: int = 1
    shard: int | None = None
    gathers: str = "layers"
    loss_chunks: int = 1
    batch_first: bool = False
    tensor_overlap: bool = False
    fused_gradients: bool = True
    framework: str = "torch"

    def __post_init__(self) -> None:
        check_fields(self)
        choices = {
            "recompute": (*RECOMPUTE, ALTERNATE),
            "attention": ATTENTION,
            "zero": ZERO,
            "gradient_bytes": (2, 4),
            "precision": tuple(PRECISIONS),
            "optimizer": OPTIMIZERS,
            "gathers": GATHERS,
            "framework": tuple(FRAMEWORKS),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} is one of {', '.join(map(str, allowed))}, not {value!r}")
        for name in ("micro_batch", "micro_batches", "chunks", "expert", "loss_chunks"):
            if type(value := getattr(self, name)) is not int or not is_count(value):
                what = f"a whole number from 1 on{beyond(value)}"
                raise ValueError(f"{name} is {what}, not {value!r}")
        if self.zero > 1 and self.mesh.pipeline > 1:
            raise ValueError(
                f"ZeRO stage {self.zero} exchanges gradients with each micro-batch, which undoes a "
                "pipeline's: take pipeline 1, or stage 0 or 1 (DeepSpeed refuses it, too)"
            )
        self._check_groups()

    def _check_groups(self) -> None:
        """Whether groups of replicas are of one size, and hold whole contexts."""
        replicas = self.mesh.replicas
        for name, size in (("expert", self.expert), ("shard", self.sharing)):
            if type(size) is not int or size < 1 or replicas % size:
                raise ValueError(
                    f"{name} {size!r} does not divide the {replicas} replicas: take a divisor"
                )
            if max(size, self.mesh.context) % min(size, self.mesh.context):
                raise ValueError(
                    f"{name} {size} and context {self.mesh.context} tear each other's groups: let "
                    "one divide the other"
                )

    @property
    def samples(self) -> int:
        """Samples of a step, over all replicas."""
        return self.micro_batch * self.micro_batches * self.mesh.data

    @property
    def sharing(self) -> int:
        """Replicas that share one copy of what `zero` says."""
        return self.mesh.replicas if self.shard is None else self.shard

    @property
    def number_bytes(self) -> int:
        """Bytes of a parameter, or of a number that lies between two layers."""
        return PRECISIONS[self.precision].dtype.itemsize

    @property
    def summed_bytes(self) -> int:
        """Bytes of a gradient as it is kept and summed: as many as its parameter has, at least."""
        return max(self.gradient_bytes, self.number_bytes)

    @property
    def product_bytes(self) -> int:
        """Bytes of a number that products read and write."""
        return PRECISIONS[self.precision].product_dtype.itemsize

    @property
    def cast_bytes(self) -> int:
        """Bytes of a weight that autocast keeps beside the parameter; 0 without it."""
        return self.product_bytes if self.product_bytes != self.number_bytes else 0

    @property
    def recipe(self) -> Recipe:
        """What the optimizer keeps and moves."""
        return recipe(self.optimizer, self.number_bytes)

    @property
    def settings(self) -> Settings:
        """Those of the fields that a search does not change."""
        return {
            "sequence_parallel": self.sequence_parallel,
            "overlap": self.overlap,
            "attention": self.attention,
            "gradient_bytes": self.gradient_bytes,
            "precision": self.precision,
            "compiled": self.compiled,
            "optimizer": self.optimizer,
        }

    @property
    def schedule(self) -> str:
        """Of the pipeline: "1F1B" or "interleaved"."""
        return "interleaved" if self.chunks > 1 else "1F1B"
