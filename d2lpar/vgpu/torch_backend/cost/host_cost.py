"""What the host needs to queue an operation, besides launching it: modules, autograd, optimizers.

Calls of modules, parameters of optimizers and functional collectives are counted where they happen,
and charged with the next operation that their thread queues: what happens on the CPU alone takes no
simulated time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ....machines.hardware import Host
from ...patching import FOR_GOOD
from ...sim.pricing.kernel_cost import Cost
from ..private import torch_autograd
from ..tensors.tensor import is_virtual

# What a view takes that C++ asks for, as a share of one that Python does. Measured by us: narrow
# and view take 1.6 and 0.8 µs in Python, both together 1.06 µs in `unflatten_dense_tensors`.
NATIVE_VIEW = 0.44


class _Pending(threading.local):
    """Python of this thread that no operation has paid for yet; whether C++ asks for views now."""

    modules = 0
    attributes = 0
    parameters = 0
    functional = 0  # collectives that were asked for as functions
    depth = 0  # of calls of modules that are under way
    native = False


pending = _Pending()


def _is_owed() -> int:
    return pending.modules or pending.parameters or pending.functional


def _python_s(host: Host) -> float:
    """Seconds of the Python that led to the operation which is queued now; they are paid so."""
    seconds = (
        pending.modules * host.module_s
        + pending.attributes * host.attribute_s
        + pending.parameters * host.parameter_s
        + pending.functional * host.functional_s
    )
    pending.modules = pending.attributes = pending.parameters = pending.functional = 0
    return seconds


def kernel_s(host: Host, tensors: Sequence[torch.Tensor], cost: Cost | None = None) -> float:
    """Seconds to queue the kernels of one operation on `tensors`, asked for by Python or autograd.

    Backward of an operation runs without making a graph, which tells it from what is computed once
    more there; hooks, such as DDP's, and what adds up gradients belong to no operation.
    """
    seconds = host.dispatch_s + _autograd_s(host, tensors)
    if pending.depth:
        seconds += host.layer_s
    if _is_owed():
        seconds += _python_s(host)
    if cost is not None and (cost.convolves or len(cost.kernels) > 1):
        seconds += _library_s(host, cost)
    return seconds


def _autograd_s(host: Host, tensors: Sequence[torch.Tensor]) -> float:
    """What autograd adds to an operation, forward or backward."""
    if not torch.is_grad_enabled():
        in_backward = torch_autograd.graph_task_id() != torch_autograd.NO_TASK
        return host.node_s if in_backward and torch_autograd.node_number() is not None else 0.0
    for tensor in tensors:
        if tensor.requires_grad:
            return host.autograd_s
    return 0.0


def extern_s(host: Host, cost: Cost) -> float:
    """Seconds of compiled code to queue an operation that it has not compiled, such as a product:
    it calls PyTorch's own, without autograd."""
    return host.dispatch_s + _library_s(host, cost)


def _library_s(host: Host, cost: Cost) -> float:
    """Seconds for the kernels after the first, and for cuDNN's calls."""
    seconds = (len(cost.kernels) - 1) * host.launch_s
    if cost.convolves:
        seconds += host.convolution_s * sum(1 for kernel in cost.kernels if kernel.flops)
    return seconds


def view_s(host: Host) -> float:
    """Seconds of an operation without a kernel."""
    seconds = host.view_s * NATIVE_VIEW if pending.native else host.view_s
    return seconds + _python_s(host) if _is_owed() else seconds


@contextmanager
def native_views() -> Iterator[None]:
    """In this block views are asked for by C++, not by Python."""
    before, pending.native = pending.native, True
    try:
        yield
    finally:
        pending.native = before


@contextmanager
def nothing_pending() -> Iterator[None]:
    """In this block, which has a clock of its own, nothing is charged that was counted outside, and
    afterwards nothing that was counted in it."""
    before = vars(pending).copy()
    vars(pending).clear()
    try:
        yield
    finally:
        vars(pending).clear()
        vars(pending).update(before)


def count_functional() -> None:
    """Count a collective that eager code asks for as a function, and its wait."""
    pending.functional += 1


def count_python() -> None:
    """Count calls of modules and steps of optimizers from now on; once a process."""
    call = torch.nn.Module.__call__
    FOR_GOOD.set(torch.nn.Module, "__call__", _counting(call))
    register_optimizer_step_pre_hook(_count_parameters)


def _counting(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def counted(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        modules, attributes = pending.modules, pending.attributes
        pending.modules = modules + 1
        pending.attributes = attributes + len(self._parameters) + len(self._buffers)
        pending.depth += 1
        try:
            return call(self, *args, **kwargs)
        finally:
            pending.depth -= 1
            if pending.modules == modules + 1:  # it has queued nothing
                pending.modules, pending.attributes = modules, attributes

    return counted


def _count_parameters(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    for group in optimizer.param_groups:
        found = group["params"]
        if found and is_virtual(found[0]):
            pending.parameters += len(found)
