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

OPTIMIZER = "optimizer on the host"

# From some eight cores on, memory limits and not the cores. Fresh pages come from the system, whose
# locks let two threads have 1.6 times as many as one (measured by us); of more, four are assumed.
_CORES_OF_MEMORY, _CORES_OF_PAGES = 8, 4

# The C library maps what is larger anew each time, and keeps what is smaller (mallopt(3),
# M_MMAP_THRESHOLD on 64 bits).
_MAPPED_BYTES = 32 * 2**20


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
            self._count([*args, *named.values()], written, result)
        return result

    def _count(self, given: list[Any], written: list[Any], result: Any) -> None:
        read = dict(_on_host(given))
        made = {place: size for place, size in _on_host(result) if place not in read}
        if read or made:
            self.operations += 1
        everything = (read, made, dict(_on_host(written)))
        self.moved_bytes += sum(sum(sizes.values()) for sizes in everything)
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
        if value.layout is torch.strided:  # which operations make of others
            yield value.data_ptr(), value.numel() * value.element_size()


class _Under(threading.local):
    """Whether a step is under way, of which another may be part."""

    way = False


_under = _Under()


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
        rt = None if torch.compiler.is_compiling() or _under.way else runtime.running()
        closure = any(given is not None for given in (*args, *kwargs.values()))
        if rt is None or closure or not _is_offloaded(self, rt):
            return step(self, *args, **kwargs)  # a closure does other work, too
        _under.way = True
        try:
            with _Traffic() as traffic:
                result = step(self, *args, **kwargs)
        finally:
            _under.way = False
        rt.host_work(traffic.seconds(rt.machine.host), OPTIMIZER)
        return result

    return timed


def _is_offloaded(optimizer: Optimizer, rt: runtime.Runtime) -> bool:
    """Whether the host keeps what it updates, and something has used a device."""
    firsts = (group["params"][:1] for group in optimizer.param_groups)
    on_host = any(first.device.type == "cpu" for group in firsts for first in group)
    return on_host and any(memory.highest_bytes for memory in rt.memories)
