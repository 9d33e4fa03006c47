"""Transformers as Megatron trains them: tensor, pipeline and data parallelism together.

One layer of one rank is simulated as the torch program that it is; layers, micro-batches, stages
and exchanges are added up (Shoeybi et al. 2019; Narayanan et al. 2021). Attention keeps its scores,
as in those years; Megatron fuses bias with GELU and mask with softmax, here there is no mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from ... import collective_cost as cost
from ...machines.hardware import Machine
from ...vgpu.cost import traffic
from ..parameters import Parameters, Run
from .measuring import gpus, seconds

# Adam in fp32 reads weight, gradient and two moments, and writes three of them and an fp16 copy.
ADAM_BYTES = 30
GRADIENT_BYTES = 4
HALF = 2  # bytes of an activation
MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Plan:
    """A transformer and how it is spread: `micro_batch` sequences at a time."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    tensor: int
    pipeline: int
    data: int
    micro_batch: int
    micro_batches: int
    recompute: bool
    chunks: int

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def samples(self) -> int:
        return self.micro_batch * self.micro_batches * self.data

    @property
    def parameters_per_gpu(self) -> float:
        matrices = 12 * self.layers * self.hidden**2 / self.pipeline
        return (matrices + self.vocabulary * self.hidden) / self.tensor

    @property
    def flops(self) -> float:
        """Of a step, what is recomputed included: Narayanan et al. 2021, equation 3."""
        s, h, layers = self.sequence, self.hidden, self.layers
        share = 1 + s / (6 * h) + self.vocabulary / (16 * layers * h)
        passes = 96 if self.recompute else 72
        return passes * self.samples * s * layers * h**2 * share

    @property
    def activation_bytes(self) -> int:
        return self.micro_batch * self.sequence * self.hidden * HALF


def megatron(p: Parameters, machine: Machine) -> Run:
    """A step of a transformer of fp16 over tensor × pipeline × data GPUs.

    Where the micro-batch is not given it is the fastest of 1 to 16, as its authors chose it.
    """
    plan, duration_s = _fastest(_plans(p), machine)
    return Run(duration_s, samples=plan.samples, flops=plan.flops / plan.gpus, gpus=plan.gpus)


def tensor_parallel(p: Parameters, machine: Machine) -> Run:
    """How many times as fast as one GPU, the batch being the same."""
    p.choice("baseline", {"single": 1})
    (plan,) = _plans(p)
    alone = replace(plan, tensor=1)
    return Run(ratio=step_s(alone, machine) / step_s(plan, machine))


def backward_parts(machine: Machine, *, hidden: int = 4096) -> tuple[float, float, float]:
    """Seconds of a layer's forward, of its input gradients, and of its weight gradients."""
    with gpus(machine) as (device,):
        layer = _on(device, lambda: Layer(hidden, hidden // 128, 1))
        x = torch.empty(4, 1024, hidden, device=device, dtype=torch.float16, requires_grad=True)
        forward_s, all_s = _forward_backward_s(layer, x)
        layer.requires_grad_(False)
        return forward_s, (inputs_s := _forward_backward_s(layer, x)[1]), all_s - inputs_s


# --- what is spread how ---------------------------------------------------------------------------


def _plans(p: Parameters) -> list[Plan]:
    """The plans that a row allows: one, or one for each size of a micro-batch."""
    p.choice("dtype", {"float16-amp": HALF, "float16": HALF, "bfloat16": HALF}, "float16-amp")
    schedule = p.choice("schedule", {"1f1b": 1, "interleaved": 2}, "1f1b")
    data = p.integer("data")
    batch, size = p.integer("batch", None), p.integer("micro_batch", None)
    if batch is None:
        sizes = [(p.integer("micro_batch"), p.integer("micro_batches"))]
    else:
        replica = batch // data
        wanted = MICRO_BATCHES if size is None else (size,)
        sizes = [(b, replica // b) for b in wanted if replica % b == 0]
    common = {
        name: p.integer(name) for name in ("layers", "hidden", "sequence", "tensor", "pipeline")
    }
    common |= {
        "heads": p.integer("heads"),
        "vocabulary": p.integer("vocabulary", 51_200),
        "recompute": p.flag("recompute", False),
        "chunks": p.integer("chunks", schedule),
    }
    return [Plan(**common, data=data, micro_batch=b, micro_batches=m) for b, m in sizes]


def _fastest(plans: list[Plan], machine: Machine) -> tuple[Plan, float]:
    times = [(plan, step_s(plan, machine)) for plan in plans]
    return min(times, key=lambda pair: pair[1])


# --- how long it takes ----------------------------------------------------------------------------


def step_s(plan: Plan, machine: Machine) -> float:
    """Seconds of a step: stages in turn, then gradients are summed over replicas, then Adam."""
    layers_s, head_s = _computing_s(plan, machine)
    stage_s = (layers_s + _tensor_sums_s(plan, machine)) * plan.layers / plan.pipeline
    sending_s = 2 * _sending_s(plan, machine)
    slowest_s = stage_s + head_s + sending_s
    filling_s = (plan.pipeline - 1) * (stage_s / plan.chunks + sending_s)
    update = traffic(int(plan.parameters_per_gpu * ADAM_BYTES))
    return (
        filling_s
        + plan.micro_batches * slowest_s
        + _gradient_sums_s(plan, machine)
        + update.seconds(machine.accelerators[0])
    )


def _computing_s(plan: Plan, machine: Machine) -> tuple[float, float]:
    """Of one micro-batch: forward and backward of a layer, and of the words that come out."""
    with gpus(machine) as (device,):
        layer = _on(device, lambda: Layer(plan.hidden, plan.heads, plan.tensor))
        shape = (plan.micro_batch, plan.sequence, plan.hidden)
        x = torch.empty(shape, device=device, dtype=torch.float16, requires_grad=True)
        forward_s, backward_s = _forward_backward_s(layer, x)
        head = _on(device, lambda: Head(plan.hidden, plan.vocabulary // plan.tensor))
        again_s = forward_s if plan.recompute else 0.0
        return forward_s + backward_s + again_s, sum(_forward_backward_s(head, x))


def _tensor_sums_s(plan: Plan, machine: Machine) -> float:
    """A layer sums its activations twice on the way forth, and its gradients twice back."""
    if plan.tensor == 1:
        return 0.0
    fabric = cost.fabric_of(machine, plan.tensor)
    passes = 3 if plan.recompute else 2
    return 2 * passes * cost.all_reduce_s(plan.activation_bytes, fabric)


def _sending_s(plan: Plan, machine: Machine) -> float:
    """Handing a micro-batch to the next stage; its tensor ranks send a share each."""
    if plan.pipeline == 1:
        return 0.0
    sent = plan.activation_bytes / plan.tensor
    if plan.tensor * plan.pipeline <= _per_node(machine):
        return machine.peer.latency_s + sent / machine.peer.payload_bytes_per_s
    return machine.network.seconds(int(sent))


def _gradient_sums_s(plan: Plan, machine: Machine) -> float:
    """Gradients are summed over the replicas at the end; those of a node use its ports together."""
    if plan.data == 1:
        return 0.0
    per_node = _per_node(machine)
    local = max(per_node // (plan.tensor * plan.pipeline), 1) if plan.tensor < per_node else 1
    whole = cost.fabric_of(machine)
    fabric = replace(
        whole,
        ranks=plan.data,
        nodes=math.ceil(plan.data / local),
        network_bytes_per_s=whole.network_bytes_per_s * local / per_node,
    )
    return cost.all_reduce_s(plan.parameters_per_gpu * GRADIENT_BYTES, fabric)


def _per_node(machine: Machine) -> int:
    return machine.node_size or len(machine.accelerators)


def _forward_backward_s(net: nn.Module, x: torch.Tensor) -> tuple[float, float]:
    forward_s = seconds(lambda: net(x))

    def both() -> None:
        net.zero_grad()
        x.grad = None
        y = net(x)
        y.backward(torch.empty_like(y))

    return forward_s, seconds(both) - forward_s


def _on(device: torch.device, make) -> nn.Module:
    with torch.device("meta"):
        net = make()
    return net.to_empty(device=device).half()


class Layer(nn.Module):
    """A rank's share of a layer: heads and columns are split, sums over ranks are left out."""

    def __init__(self, hidden: int, heads: int, ranks: int) -> None:
        super().__init__()
        self.heads, self.size = heads // ranks, hidden // heads
        self.norm, self.last_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden // ranks)
        self.out = nn.Linear(hidden // ranks, hidden)
        self.up = nn.Linear(hidden, 4 * hidden // ranks)
        self.down = nn.Linear(4 * hidden // ranks, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.out(self.attention(self.norm(x))), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.last_norm(x)))), 0.1)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence = x.shape[:2]
        parts = self.qkv(x).view(batch, sequence, 3, self.heads, self.size).unbind(2)
        q, k, v = (part.transpose(1, 2).flatten(0, 1) for part in parts)
        nothing = q.new_empty(1, 1, 1).expand(len(q), sequence, sequence)
        scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=self.size**-0.5)
        mixed = torch.bmm(F.dropout(scores.softmax(-1), 0.1), v)
        mixed = mixed.view(batch, self.heads, sequence, self.size).transpose(1, 2)
        return mixed.reshape(batch, sequence, -1)


class Head(nn.Module):
    """The score of every word, and the loss of the words that should have come."""

    def __init__(self, hidden: int, words: int) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(hidden), nn.Linear(hidden, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.words(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(scores, torch.empty(len(scores), dtype=torch.long, device=x.device))
