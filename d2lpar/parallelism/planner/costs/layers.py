"""How long a layer takes on one rank: simulated as the torch program that it is.

Megatron fuses bias with GELU and mask with softmax; here there is no mask, and nothing is fused
unless attention is asked to be, or the program is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import torch
from torch import nn

from ....machines.hardware import Accelerator, Host, Link, Machine
from ....vgpu import current_runtime
from ....vgpu.api import simulation
from ....vgpu.torch_backend.module.streams import Event
from ..precision import PRECISIONS, Precision, product_rate
from ..transformer import Transformer
from .modules import Head, Layer, Products
from .share import Share

_ROOM_BYTES = 10**15  # whether it fits is asked elsewhere
MILLI = 1e-3
_LARGEST = 10**12  # numbers of one tensor: no GPU holds them, and torch counts bytes in 64 bits

Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of a micro-batch in one layer, forward and backward, and in how many of them the host
    has queued it."""

    forward_s: float
    backward_s: float
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0


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

    @property
    def accelerator(self) -> Accelerator:
        """The GPU."""
        return self.machine.accelerators[0]


@lru_cache(maxsize=4096)  # a figure asks for the same layers again whenever a slider moves
def layer_times(gpu: GpuAndHost, share: Share) -> LayerTimes:
    """Of a layer, without its exchanges. Raises ValueError for fp8 on a card without it, and for
    sizes that nobody could compute with."""
    _check_sizes(share)
    product_rate(gpu.accelerator, share.precision)  # names what is missing
    return _timed(gpu, lambda: Layer(share), share)


@lru_cache(maxsize=4096)
def head_times(gpu: GpuAndHost, share: Share) -> LayerTimes:
    """Of the scores of words and their loss."""
    return _timed(gpu, lambda: Head(share), share)


@lru_cache(maxsize=4096)
def core_s(gpu: GpuAndHost, share: Share) -> float:
    """Seconds of the attention between its products, forward: what "selective" computes again."""
    precision = PRECISIONS[share.precision]
    with simulation.simulate(gpu.machine) as (device,), torch.no_grad(), precision.context():
        layer = on_gpu(device, lambda: Layer(share), share)
        core = torch.compile(layer.core) if share.compiled else layer.core
        shape = (share.micro_batch, share.sequence, layer.qkv.out_features)
        qkv = torch.empty(shape, device=device, dtype=precision.product_dtype)
        with precision.forward_context():
            return _seconds(lambda: core(qkv))[0]


@lru_cache(maxsize=4096)
def product_times(gpu: GpuAndHost, share: Share) -> LayerTimes:
    """Of a layer's products with weights alone."""
    return _timed(gpu, lambda: Products(share), share)


def backward_parts(machine: Machine) -> tuple[float, float, float]:
    """Seconds of a layer's forward, of its input gradients, and of its weight gradients.

    The layer is 4096 wide, its 32 heads read four sequences of 1024 tokens.
    """
    one = Transformer("one layer", 1, 4096, 32, sequence=1024, vocabulary=1)
    share = Share(one, micro_batch=4)
    gpu = GpuAndHost.of(machine.accelerators[0], machine.host)
    with simulation.simulate(gpu.machine) as (device,):
        layer, x = on_gpu(device, lambda: Layer(share), share), _input(device, share)
        precision = PRECISIONS[share.precision]
        times = _forward_backward(layer, x, precision)
        layer.requires_grad_(False)
        inputs_s = _forward_backward(layer, x, precision).backward_s
        return times.forward_s, inputs_s, times.backward_s - inputs_s


def _check_sizes(share: Share) -> None:
    model, rows = share.model, share.micro_batch * share.sequence
    heads = model.heads // share.tensor
    largest = {
        f"activations of {share.micro_batch} samples of {share.sequence} tokens": rows
        * max(model.hidden, model.inner, share.words, heads * model.sequence),
        "parameters": model.layer_parameters(share.tensor, share.expert),
        f"an embedding of {model.vocabulary} words": model.word_parameters(share.tensor),
    }
    for what, numbers in largest.items():
        if numbers > _LARGEST:
            raise ValueError(
                f"a layer of width {model.hidden} with {what} has {numbers} numbers, more than "
                f"any GPU holds ({_LARGEST:.0e}): take smaller sizes or micro-batches"
            )


def _timed(gpu: GpuAndHost, make: Callable[[], nn.Module], share: Share) -> LayerTimes:
    precision = PRECISIONS[share.precision]
    with simulation.simulate(gpu.machine) as (device,), precision.context():
        return _forward_backward(on_gpu(device, make, share), _input(device, share), precision)


@torch.enable_grad()  # whatever the caller has switched off
def _forward_backward(net: nn.Module, x: torch.Tensor, precision: Precision) -> LayerTimes:
    def forward() -> torch.Tensor:
        with precision.forward_context():
            return net(x)

    def both() -> None:
        net.zero_grad()
        x.grad = None
        y = forward()
        y.backward(torch.empty_like(y))

    forward_s, forward_host_s = _seconds(forward)
    both_s, both_host_s = _seconds(both)
    return LayerTimes(forward_s, both_s - forward_s, forward_host_s, both_host_s - forward_host_s)


def _seconds(program: Callable[[], object]) -> tuple[float, float]:
    """What a program takes behind another, as layers follow each other, and in how much of it the
    host has queued it: a GPU that is behind its host waits for nothing at the beginning."""
    rt, marks = current_runtime(), []
    for _ in range(2):
        program()
        event = Event(enable_timing=True)
        event.record()
        marks.append((event, rt.now_s()))
    (before, queued_before_s), (after, queued_s) = marks
    after.synchronize()
    return before.elapsed_time(after) * MILLI, queued_s - queued_before_s


def _input(device: torch.device, share: Share) -> torch.Tensor:
    shape = (share.micro_batch, share.tokens, share.model.hidden)
    dtype = PRECISIONS[share.precision].dtype
    return torch.empty(shape, device=device, dtype=dtype, requires_grad=True)


def on_gpu(device: torch.device, make: Callable[[], Net], share: Share) -> Net:
    """A net on a device, as its program has it: in its precision, and compiled if it is."""
    with torch.device("meta"):
        net = make()
    net = net.to_empty(device=device).to(PRECISIONS[share.precision].dtype)
    if share.compiled:
        net.compile()
    return net
