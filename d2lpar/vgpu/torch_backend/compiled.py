"""Compiled regions: calls of what `torch.compile` has made, and the backward passes of these.

In a region modules and views take the host no time, pointwise work is fused (`fusion`), and a
kernel costs its launch from generated code. The call itself costs guards and wrappers once. With
CUDA graphs the host launches all of a region at once.

What pointwise work makes is computed once more where backward needs it, as by the partitioner of
AOTAutograd: it takes no memory, but what it is computed from stays. That is on the low side where
Inductor keeps a result that is far from its inputs.

A backward operation belongs to the region of its forward operation, which autograd's numbers tell.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.utils._pytree import tree_leaves

from ...machines.hardware import Host
from . import torch_private
from .fusion import FusedKernel, elements
from .runtime import Runtime, StreamKey, running
from .tensor import VirtualTensor

KEPT_CALLS = 20_000


class Region:
    """One call of compiled code, with `modules` to guard; `whole`: as a CUDA graph."""

    def __init__(self, *, whole: bool, modules: int = 0) -> None:
        self.whole = whole
        self._modules = modules
        self._begun = False

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
        reads: Sequence[VirtualTensor],
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
        put = partial(rt.host_threads.put, torch_private.graph_task_id(), stream[0])
        host = rt.machine.host
        super().__init__(rt, stream, size, put, region.dispatch_s(host, host.compiled_s))


class _Thread(threading.local):
    """The region that this thread is in; of past calls the first numbers of autograd's nodes, those
    after their last ones, and whether they were graphs."""

    def __init__(self) -> None:
        self.region: Region | None = None
        self.starts: list[int] = []
        self.calls: list[tuple[int, bool]] = []
        self.backward: tuple[int, int, Region] | None = None

    def remember(self, start: int, end: int, *, whole: bool) -> None:
        """Note a call that made nodes."""
        if end == start:
            return
        self.starts.append(start)
        self.calls.append((end, whole))
        if len(self.starts) > KEPT_CALLS:
            del self.starts[: KEPT_CALLS // 2], self.calls[: KEPT_CALLS // 2]

    def of_backward(self, task: int) -> Region | None:
        """The region of the backward operation under way in pass `task`."""
        number = torch_private.node_number()
        at = 0 if number is None else bisect_right(self.starts, number)
        if not at or number is None or number >= self.calls[at - 1][0]:
            return None
        start = self.starts[at - 1]
        if self.backward is None or self.backward[:2] != (task, start):
            self.backward = (task, start, Region(whole=self.calls[at - 1][1]))
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
    task = torch_private.graph_task_id()
    return None if task == torch_private.NO_TASK else _here.of_backward(task)


def run(
    function: Callable[..., Any], args: tuple, kwargs: dict, *, whole: bool, modules: int = 0
) -> Any:
    """Call a function as a compiled one, of `modules`; within another such call it is a part."""
    global _used
    _used = True
    if _here.region is not None:
        return function(*args, **kwargs)
    _let_go()
    _here.region = Region(whole=whole, modules=modules)
    start = torch_private.next_node_number()
    try:
        results = function(*args, **kwargs)
        _materialize(results)
        return results
    finally:
        _here.region = None
        _here.remember(start, torch_private.next_node_number(), whole=whole)
        _let_go()


def _materialize(results: object) -> None:
    """What compiled code returns takes memory."""
    for result in tree_leaves(results):
        if isinstance(result, VirtualTensor):
            result.vgpu_allocation.materialize()


def _let_go() -> None:
    rt = running()
    if rt is not None:
        rt.host_threads.let_go()
