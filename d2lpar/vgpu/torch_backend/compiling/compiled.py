"""Compiled regions: calls of what `torch.compile` has made, and the backward passes of these.

In a region modules and views take the host no time, pointwise work is fused (`fusion`), and a
kernel costs its launch from generated code. The call itself costs guards and wrappers once. With
CUDA graphs the host launches all of a region at once.

What pointwise work makes is computed once more where backward needs it, as by the partitioner of
AOTAutograd: it takes no memory, but what it is computed from stays. What a product or another
kernel of its own reads, and keeps for its backward pass, does take memory: to compute that again
would not be free (`is_materialized_backwards` in torch/_functorch/partitioners.py). That is on the
low side where Inductor keeps a result that is far from its inputs.

A backward operation belongs to the region of its forward operation: autograd's node knows it, in
whatever thread it was made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ....machines.hardware import Host
from ...memory.caching_allocator import Allocation
from ..machine.runtime import Runtime, StreamKey, running
from ..private import torch_autograd
from ..tensors.tensor import VirtualTensor
from .fusion import FusedKernel, Read, elements

REGION = "compiled region"  # in what is noted of nodes of autograd
_PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.bmm}


class Region:
    """One call of compiled code, with `modules` to guard; `whole`: as a CUDA graph; `tuned`: its
    loops are tuned, and products of vectors are loops."""

    def __init__(self, *, whole: bool, tuned: bool, modules: int = 0) -> None:
        self.whole, self.tuned = whole, tuned
        self._modules = modules
        self._begun = False

    def sums(self, packet: torch._ops.OpOverloadPacket, args: Sequence[Any]) -> bool:
        """Whether an operation is a product that Inductor writes as a sum of products, which is
        fused with others (torch/_inductor/decomposition.py, `mm` and `bmm`)."""
        if not self.tuned or packet not in _PRODUCTS:
            return False
        return bool(args[0].shape[-2] == 1 or args[1].shape[-1] == 1)

    def dispatch_s(self, host: Host, kernel_s: float) -> float:
        """Seconds to queue a kernel that takes `kernel_s` by itself; with the first, the call."""
        seconds = 0.0 if self.whole else kernel_s
        if self._begun:
            return seconds
        self._begun = True
        seconds += host.compiled_call_s + self._modules * host.guard_s
        return seconds + host.graph_s if self.whole else seconds

    def fuse(
        self,
        rt: Runtime,
        stream: StreamKey,
        name: str,
        reads: Sequence[Read],
        writes: Sequence[VirtualTensor],
        again_bytes: int = 0,
    ) -> None:
        """Let an operation be part of the kernel that is held back, or begin a new one."""
        size = elements(reads, writes)
        kernel = rt.host_threads.held
        if not (
            isinstance(kernel, RegionKernel)
            and kernel.region is self
            and kernel.takes(stream, size, reads)
        ):
            rt.host_threads.let_go()
            kernel = RegionKernel(self, rt, stream, size)
            rt.host_threads.held = kernel
        kernel.add(name, reads, writes, again_bytes)


class RegionKernel(FusedKernel):
    """A fused kernel of a region."""

    def __init__(self, region: Region, rt: Runtime, stream: StreamKey, size: int) -> None:
        self.region = region
        put = partial(rt.host_threads.put, torch_autograd.graph_task_id(), stream[0])
        host = rt.machine.host
        super().__init__(rt, stream, size, put, region.dispatch_s(host, host.compiled_s))


class _Thread(threading.local):
    """The region that this thread is in, and that of the backward pass of a call under way."""

    def __init__(self) -> None:
        self.region: Region | None = None
        self.backward: tuple[int, Region, Region] | None = None

    def of_backward(self, task: int) -> Region | None:
        """The region of the backward operation under way in pass `task`."""
        forward = torch_autograd.notes_of_node().get(REGION)
        if forward is None:
            return None
        if self.backward is None or self.backward[:2] != (task, forward):
            self.backward = (task, forward, Region(whole=forward.whole, tuned=forward.tuned))
        return self.backward[2]


_here = _Thread()
_used = False  # ever, in this process


def is_used() -> bool:
    """Whether any code was compiled in this process."""
    return _used


def current() -> Region | None:
    """The region that the operation under way is part of."""
    if not _used:
        return None
    if _here.region is not None:
        return _here.region
    task = torch_autograd.graph_task_id()
    return None if task == torch_autograd.NO_TASK else _here.of_backward(task)


def are_differentiated(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether autograd takes note of what an operation does with them."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def sources(tensors: Sequence[VirtualTensor]) -> tuple[Allocation, ...]:
    """What the result of a fused operation is computed from again, if autograd keeps it; nothing,
    if it is gone with the kernel. What lies between is gone, too, if nobody else has it."""
    if not are_differentiated(tensors):
        return ()
    allocations = (tensor.vgpu_allocation for tensor in tensors)
    return tuple(chain.from_iterable(a.sources if a.deferred_bytes else [a] for a in allocations))


def run(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict,
    *,
    whole: bool = False,
    tuned: bool = False,
    modules: int = 0,
) -> Any:
    """Call a function as a compiled one (see `Region`); within another such call it is a part."""
    global _used
    _used = True
    if _here.region is not None:
        return function(*args, **kwargs)
    _let_go()
    _here.region = region = Region(whole=whole, tuned=tuned, modules=modules)
    start = torch_autograd.next_node_number()
    remembers = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # each call casts its weights
    try:
        results = function(*args, **kwargs)
        found = tree_leaves(results)
        _materialize(found)
        for node in torch_autograd.nodes_from(found, start):
            node.metadata[REGION] = region
        return results
    finally:
        torch.set_autocast_cache_enabled(remembers)
        _here.region = None
        _let_go()


def _materialize(results: Iterable[object]) -> None:
    """What compiled code returns takes memory."""
    for result in results:
        if isinstance(result, VirtualTensor):
            result.vgpu_allocation.materialize()


def _let_go() -> None:
    rt = running()
    if rt is not None:
        rt.host_threads.let_go()
