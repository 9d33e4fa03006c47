"""Reading a prompt and writing a token, simulated as the torch programs that they are.

A net of few layers is simulated with shapes only, and extrapolated: all layers are alike, so that
time is linear in their number. Layers are the planner's; when a token is written, keys and values
of those before it are read from buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from ...vgpu.api import simulation
from ...vgpu.torch_backend.machine import runtime
from ...vgpu.torch_backend.module import graph_capture
from ..planner import Experts, Transformer
from ..planner.costs.layers import GpuAndHost, on_gpu
from ..planner.costs.modules import Head, Layer
from ..planner.costs.share import Share
from ..planner.precision import PRECISIONS

FEW, MORE = 2, 4  # layers that are simulated


class WritingLayer(Layer):
    """A layer that reads one new token of each text, and keys and values of `past` ones."""

    def __init__(self, share: Share, past: int) -> None:
        super().__init__(share)
        shape = (share.micro_batch, self.key_heads, past + 1, self.size)
        self.keys, self.values = nn.Buffer(torch.empty(shape)), nn.Buffer(torch.empty(shape))

    def core(self, qkv: torch.Tensor) -> torch.Tensor:
        """What lies between the two products with weights, [texts, 1, numbers]."""
        q, k, v = (part.transpose(1, 2) for part in self.queries_keys_values(qkv))
        self.keys[:, :, -1:] = k
        self.values[:, :, -1:] = v
        gqa = self.key_heads < self.heads
        mixed = F.scaled_dot_product_attention(q, self.keys, self.values, enable_gqa=gqa)
        return mixed.transpose(1, 2).reshape(len(q), 1, -1)


class Reader(nn.Module):
    """From [samples, tokens, hidden] to the next word of each text; of an encoder to what its
    layers make of them, and to the scores of classes if there are any.

    Words are looked up already: a row of the table for each token costs next to nothing.
    """

    def __init__(self, share: Share, layers: list[nn.Module], *, writes: bool) -> None:
        super().__init__()
        self.layers, self.writes = nn.ModuleList(layers), writes
        self.head = Head(share) if writes or share.model.scored else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The word with the highest score of each text, [texts]; or results, [texts, …]."""
        for layer in self.layers:
            x = layer(x)
        if self.head is None:
            return x
        scores = self.head.words(self.head.norm(x[:, -1]))
        return scores.argmax(-1) if self.writes else scores


@dataclass(frozen=True)
class Pass:
    """One pass through the net: seconds of all layers, and bytes that come and go beside weights
    and buffers."""

    seconds: float
    working_bytes: int


@lru_cache(maxsize=1024)
def reading(gpu: GpuAndHost, share: Share, layers: int, *, writes: bool, graph: bool) -> Pass:
    """A pass over `share.micro_batch` samples; with `writes` over prompts, each with one new word
    in the end, else of an encoder."""
    return _pass(gpu, share, layers, lambda: Layer(share), writes=writes, graph=graph)


@lru_cache(maxsize=1024)
def writing(gpu: GpuAndHost, share: Share, layers: int, past: int, *, graph: bool) -> Pass:
    """Writing one more token of each of `share.micro_batch` texts of `past` tokens."""
    model = replace(_met(share.model, share.micro_batch), sequence=1, causal=False)
    share = replace(share, model=model)
    return _pass(gpu, share, layers, lambda: WritingLayer(share, past), writes=True, graph=graph)


def met_experts(experts: Experts, tokens: int) -> int:
    """How many of a layer's experts are expected to be chosen by one of so many tokens at least, if
    each is as likely: those whose weights are read."""
    share = 1 - (1 - experts.top_k / experts.count) ** tokens
    return min(max(round(experts.count * share), experts.top_k), experts.count)


def _met(model: Transformer, tokens: int) -> Transformer:
    if model.experts is None or (count := met_experts(model.experts, tokens)) < 2:
        return model
    return replace(model, experts=Experts(count, model.experts.top_k))


def _pass(
    gpu: GpuAndHost,
    share: Share,
    layers: int,
    make: Callable[[], nn.Module],
    *,
    writes: bool,
    graph: bool,
) -> Pass:
    counts = [layers] if layers <= MORE else [FEW, MORE]
    took = [_simulated(gpu, share, count, make, writes=writes, graph=graph) for count in counts]
    if len(took) == 1:
        return took[0]
    few, more = took
    each_s = (more.seconds - few.seconds) / (MORE - FEW)
    return Pass(more.seconds + (layers - MORE) * each_s, more.working_bytes)


def _simulated(
    gpu: GpuAndHost,
    share: Share,
    layers: int,
    make: Callable[[], nn.Module],
    *,
    writes: bool,
    graph: bool,
) -> Pass:
    """A net of so many layers, simulated in full: the second of two passes in a row."""
    precision, model = PRECISIONS[share.precision], share.model

    def make_net() -> Reader:
        return Reader(share, [make() for _ in range(layers)], writes=writes)

    with simulation.simulate(gpu.machine) as (device,), torch.no_grad(), precision.context():
        net = on_gpu(device, make_net, share).eval()
        shape = (share.micro_batch, model.sequence, model.hidden)
        x = torch.empty(shape, dtype=precision.dtype, device=device)
        working_bytes = _working_bytes(net, x, device)
        run = _graphed(net, x) if graph else lambda: net(x)
        run()
        start_s = _now_s()
        run()
        return Pass(_now_s() - start_s, working_bytes)


def _working_bytes(net: nn.Module, x: torch.Tensor, device: torch.device) -> int:
    module = torch.get_device_module(device)
    before = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    net(x)
    return int(module.max_memory_allocated(device) - before)


def _graphed(net: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    net(x)
    graph = graph_capture.CUDAGraph()
    with graph_capture.capture(graph):
        net(x)
    return graph.replay


def _now_s() -> float:
    """The simulated time when all that was queued is done."""
    current = runtime.current_runtime()
    current.synchronize(0)
    return current.now_s()
