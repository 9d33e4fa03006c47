"""How long a layer takes on one rank: simulated as the torch program that it is.

Megatron fuses bias with GELU and mask with softmax; here there is no mask, and nothing is fused
unless attention is asked to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from ...machines.hardware import Accelerator, Host, Link, Machine
from ...vgpu.api import simulation, timing

_ROOM_BYTES = 10**13  # whether it fits is asked elsewhere
_FUSED = "_scaled_dot_product_flash_attention_for_cpu"

Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class Share:
    """One rank's share of a layer and of a micro-batch: 1 of `tensor` ranks."""

    hidden: int
    heads: int
    sequence: int
    words: int
    micro_batch: int
    tensor: int = 1
    sequence_parallel: bool = False
    attention: str = "scores"
    dropout: float = 0.1

    @property
    def tokens(self) -> int:
        """Of a sample, those whose norms and dropout this rank computes."""
        return -(-self.sequence // self.tensor) if self.sequence_parallel else self.sequence


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of a micro-batch in one layer, forward and backward."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class GpuAndHost:
    """One GPU and its host, which two machines may have in common: equal if they are."""

    key: str
    machine: Machine = field(compare=False, repr=False)

    @classmethod
    def of(cls, accelerator: Accelerator, host: Host) -> GpuAndHost:
        """A machine of this one GPU, with more memory than any layer needs."""
        roomy = replace(accelerator, memory_bytes=_ROOM_BYTES)
        link = Link("not used", 0.0, 1.0)
        return cls(repr((accelerator, host)), Machine("one GPU", (roomy,), host, link))


@lru_cache(maxsize=4096)  # a figure asks for the same layers again whenever a slider moves
def layer_times(gpu: GpuAndHost, share: Share) -> LayerTimes:
    """Of a layer, without its exchanges."""
    return _timed(gpu, lambda: Layer(share), share)


@lru_cache(maxsize=4096)
def head_times(gpu: GpuAndHost, share: Share) -> LayerTimes:
    """Of the scores of words and their loss."""
    return _timed(gpu, lambda: Head(share), share)


@lru_cache(maxsize=4096)
def core_s(gpu: GpuAndHost, share: Share) -> float:
    """Seconds of the attention between its products, forward: what "selective" computes again."""
    with simulation.simulate(gpu.machine) as (device,), torch.no_grad():
        shape = (share.micro_batch, share.sequence, 3 * share.hidden // share.tensor)
        layer = _on(device, lambda: Layer(share))
        qkv = torch.empty(shape, device=device, dtype=torch.float16)
        return _seconds(lambda: layer.core(qkv))


def backward_parts(machine: Machine, *, hidden: int = 4096) -> tuple[float, float, float]:
    """Seconds of a layer's forward, of its input gradients, and of its weight gradients."""
    share = Share(hidden, hidden // 128, sequence=1024, words=1, micro_batch=4)
    gpu = GpuAndHost.of(machine.accelerators[0], machine.host)
    with simulation.simulate(gpu.machine) as (device,):
        layer, x = _on(device, lambda: Layer(share)), _input(device, share)
        times = _forward_backward(layer, x)
        layer.requires_grad_(False)
        inputs_s = _forward_backward(layer, x).backward_s
        return times.forward_s, inputs_s, times.backward_s - inputs_s


def _timed(gpu: GpuAndHost, make: Callable[[], nn.Module], share: Share) -> LayerTimes:
    with simulation.simulate(gpu.machine) as (device,):
        return _forward_backward(_on(device, make), _input(device, share))


@torch.enable_grad()  # whatever the caller has switched off
def _forward_backward(net: nn.Module, x: torch.Tensor) -> LayerTimes:
    forward_s = _seconds(lambda: net(x))

    def both() -> None:
        net.zero_grad()
        x.grad = None
        y = net(x)
        y.backward(torch.empty_like(y))

    return LayerTimes(forward_s, _seconds(both) - forward_s)


def _seconds(program: Callable[[], object]) -> float:
    return timing.measure(program, repeats=1).median_s


def _input(device: torch.device, share: Share) -> torch.Tensor:
    shape = (share.micro_batch, share.tokens, share.hidden)
    return torch.empty(shape, device=device, dtype=torch.float16, requires_grad=True)


def _on(device: torch.device, make: Callable[[], Net]) -> Net:
    with torch.device("meta"):
        net = make()
    return net.to_empty(device=device).half()


class Layer(nn.Module):
    """A rank's share of a layer: heads and columns are split, sums over ranks are left out."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        hidden, ranks = share.hidden, share.tensor
        self.share = share
        self.heads, self.size = share.heads // ranks, hidden // share.heads
        self.norm, self.last_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden // ranks)
        self.out = nn.Linear(hidden // ranks, hidden)
        self.up = nn.Linear(hidden, 4 * hidden // ranks)
        self.down = nn.Linear(4 * hidden // ranks, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and the perceptron: from [samples, tokens, hidden] to the same."""
        x = x + self._dropout(_scattered(self.attention(self.norm(x)), self.share))
        y = self.down(F.gelu(self.up(_gathered(self.last_norm(x), self.share))))
        return x + self._dropout(_scattered(y, self.share))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """That of this rank's heads, [samples, sequence, hidden]."""
        return self.out(self.core(self.qkv(_gathered(x, self.share))))

    def core(self, qkv: torch.Tensor) -> torch.Tensor:
        """What lies between the two products with weights."""
        batch, sequence = qkv.shape[:2]
        parts = qkv.view(batch, sequence, 3, self.heads, self.size).unbind(2)
        mix = self._fused if self.share.attention == "fused" else self._scored
        mixed = mix(*(part.transpose(1, 2) for part in parts))
        return mixed.transpose(1, 2).reshape(batch, sequence, -1)

    def _scored(self, *qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.flatten(0, 1) for part in qkv)
        sequence = q.shape[1]
        nothing = q.new_empty(1, 1, 1).expand(len(q), sequence, sequence)
        scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=self.size**-0.5)
        mixed = torch.bmm(self._dropout(scores.softmax(-1)), v)
        return mixed.view(-1, self.heads, sequence, self.size)

    def _fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # By name, as shapes alone would not choose it. Its dropout costs next to nothing.
        return getattr(torch.ops.aten, _FUSED)(q, k, v)[0]

    def _dropout(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.share.dropout)


class Head(nn.Module):
    """The score of every word, and the loss of the words that should have come."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share
        self.norm = nn.LayerNorm(share.hidden)
        self.words = nn.Linear(share.hidden, share.words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean loss over all tokens of `x`, [samples, tokens, hidden]."""
        scores = self.words(_gathered(self.norm(x), self.share)).flatten(0, 1)
        return F.cross_entropy(scores, torch.empty(len(scores), dtype=torch.long, device=x.device))


class _Tokens(Protocol):
    tokens: int


class _Resized(torch.autograd.Function):
    """A tensor with another number of tokens, which an exchange that is not simulated brought."""

    @staticmethod
    def forward(ctx: _Tokens, x: torch.Tensor, tokens: int) -> torch.Tensor:
        ctx.tokens = x.shape[1]
        return x.new_empty(x.shape[0], tokens, x.shape[2])

    @staticmethod
    def backward(ctx: _Tokens, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return dy.new_empty(dy.shape[0], ctx.tokens, dy.shape[2]), None


def _gathered(x: torch.Tensor, share: Share) -> torch.Tensor:
    return _Resized.apply(x, share.sequence) if share.sequence_parallel else x


def _scattered(x: torch.Tensor, share: Share) -> torch.Tensor:
    return _Resized.apply(x, share.tokens) if share.sequence_parallel else x
