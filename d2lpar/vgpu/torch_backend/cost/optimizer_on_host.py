"""What a step of an optimizer takes whose parameters the host keeps, such as offloaded ones.

What else the CPU computes takes no simulated time; but a program that offloads, by hand or by FSDP,
waits for this in each step, and longer than for all else. Each operation moves its operands through
the host's memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ....machines.hardware import Host
from ...patching import FOR_GOOD
from ...sim.constants import PAGE_LOCK_BYTES_PER_S
from ...sim.staging import copied_bytes_per_s
from ..machine import runtime
from ..private import torch_operators
from ..private.op_schema import traits_of
from ..tensors.tensor import is_virtual

OPTIMIZER = "optimizer on the host"

# From some eight cores on, memory limits and not the cores. Fresh pages come from the system, whose
# locks let two threads have 1.6 times as many as one (measured by us); of more, four are assumed.
_CORES_OF_MEMORY, _CORES_OF_PAGES = 8, 4

# The C library maps what is larger anew each time, and keeps what is smaller (mallopt(3),
# M_MMAP_THRESHOLD on 64 bits).
_MAPPED_BYTES = 32 * 2**20

_FILLS = {"copy_", "fill_", "zero_"}  # they do not read what they write


class _Traffic(TorchDispatchMode):
    """Counts what the operations of the block move in the host's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.moved_bytes = self.fresh_bytes = 0

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor's: the operations that it is made of come here, too
        named, traits = dict(kwargs or {}), traits_of(func)
        with torch_operators.counting() if traits.counts_writes else nullcontext():
            result = func(*args, **named)
        if traits.launches and not types:  # which fake tensors have
            written = [
                args[number] if number < len(args) else named.get(name)
                for number, name in traits.written
                if name != "grads"  # which fused steps write for gradient scalers alone
            ]
            given = [*args, *named.values()]
            self._count(given[1:] if traits.name in _FILLS else given, written, result)
        return result

    def beside(self, closure: Any) -> Any:
        """What computes the loss for the step, which is no part of it."""
        if not callable(closure):
            return closure

        def computing() -> Any:
            self.__exit__(None, None, None)
            try:
                return closure()
            finally:
                self.__enter__()

        return computing

    def _count(self, given: list[Any], written: list[Any], result: Any) -> None:
        read = dict(_on_host(given))
        outputs = dict(_on_host(written))
        made = {p: size for p, size in _on_host(result) if p not in read and p not in outputs}
        if read or made or outputs:
            self.operations += 1
        self.moved_bytes += sum(sum(sizes.values()) for sizes in (read, made, outputs))
        self.fresh_bytes += sum(size for size in made.values() if size > _MAPPED_BYTES)

    def seconds(self, host: Host) -> float:
        """How long it takes the threads that a host gives this process."""
        threads = _threads(host)
        return (
            self.operations * max(host.dispatch_s - host.launch_s, 0.0)
            + self.moved_bytes / (2 * copied_bytes_per_s(host) * min(threads, _CORES_OF_MEMORY))
            + self.fresh_bytes / (PAGE_LOCK_BYTES_PER_S * min(threads, _CORES_OF_PAGES))
        )


def _threads(host: Host) -> int:
    """Those of a process on the named machine; torchrun says one where it starts several."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) else host.cores or _CORES_OF_MEMORY


def _on_host(values: Any) -> Iterator[tuple[int, int]]:
    """Address and bytes of each tensor that the host keeps."""
    for value in tree_leaves(values):
        if not (isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel()):
            continue
        # Sparse ones are made of others, and fake ones have no memory.
        if value.layout is torch.strided and not hasattr(value, "fake_device"):
            yield value.data_ptr(), value.numel() * value.element_size()


class _State(threading.local):
    """Of a thread: whether it is in a step, of which another may be part."""

    is_stepping = False


_state = _State()


def take_time() -> None:
    """Let steps on the host take simulated time from now on; once a process."""
    hook = Optimizer.profile_hook_step  # torch asks it for each class of optimizers, once

    def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
        return hook(_taking_time(step))

    FOR_GOOD.set(Optimizer, "profile_hook_step", staticmethod(hooked))
    for kind in _kinds(Optimizer):
        if getattr(vars(kind).get("step"), "hooked", False):
            FOR_GOOD.set(kind, "step", _taking_time(kind.step))


def _kinds(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for further in kind.__subclasses__():
        yield further
        yield from _kinds(further)


def _taking_time(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def timed(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        rt = None if torch.compiler.is_compiling() or _state.is_stepping else runtime.running()
        if rt is None or not _is_offloaded(self, rt):
            return step(self, *args, **kwargs)
        traffic = _Traffic()
        given = [traffic.beside(each) for each in args]
        named = {name: traffic.beside(each) for name, each in kwargs.items()}
        _state.is_stepping = True
        try:
            with traffic:
                result = step(self, *given, **named)
        finally:
            _state.is_stepping = False
        rt.host_work(traffic.seconds(rt.machine.host), OPTIMIZER)
        return result

    return timed


def _is_offloaded(optimizer: Optimizer, rt: runtime.Runtime) -> bool:
    """Whether the host keeps what it updates, and something has used a device."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    on_host = any(not is_virtual(p) and p.device.type == "cpu" for p in parameters)
    return on_host and any(memory.highest_bytes for memory in rt.memories)
