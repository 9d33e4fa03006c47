"""What the tensors of a device would occupy with twice the batch.

Some steps are followed, from one update of an optimizer to the next, allocation by allocation. What
was there before, or lasts a whole step, gradients, and what updates need themselves, stay as large
as they are. All else counts twice: that is too much for what has the size of parameters, such as
what FSDP gathers, so that the figure is on the high side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from weakref import ref

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...memory.caching_allocator import CachingAllocator, Change
from ...torch_backend.machine.runtime import Runtime

STEPS = 2  # in the first DDP makes its buckets anew


class _Device:
    """What tensors occupied on a device when it was begun to be followed, and changes since."""

    def __init__(self, memory: CachingAllocator) -> None:
        self._memory = memory
        self._begin_bytes = memory.allocated_bytes
        self._changes: list[Change] = []
        # How many changes there were when updates began and ended, and the gradients by then.
        self._updates: list[tuple[int, int, Collection[int]]] = []
        self._begun = 0
        memory.changes = self._changes

    def updates(self) -> None:
        """An update begins."""
        self._begun = len(self._changes)

    def updated(self, gradients: Collection[int]) -> None:
        """An update has ended; these are the ids of gradients."""
        self._updates.append((self._begun, len(self._changes), gradients))

    def leave(self) -> None:
        """Follow it no longer."""
        self._memory.changes = None

    def most_bytes(self) -> int:
        """The most that is held at once, if what has to do with the batch counts twice; at least
        what the run has held at any time."""
        held_bytes, most_bytes = self._begin_bytes, self._memory.highest_bytes
        for (_, nbytes), again in zip(self._changes, self._again(), strict=False):
            held_bytes += nbytes + again
            most_bytes = max(most_bytes, held_bytes)
        return most_bytes

    def _again(self) -> list[int]:
        """Of each change up to the last update the bytes that count twice."""
        found: list[int] = []
        made: dict[int, int] = {}  # numbers of changes, by the ids of allocations that are there
        last = 0
        for begun, ended, gradients in self._updates:
            for number in range(last, ended):
                who, nbytes = self._changes[number]
                if nbytes > 0:
                    made[who] = number
                    found.append(nbytes if number < begun else 0)
                else:
                    found.append(-found[made.pop(who)] if who in made else 0)
            for who, number in made.items():
                if number < last or who in gradients:
                    found[number] = 0
            last = ended
        return found


class BatchMemory:
    """The first steps of the optimizer that is stepped first."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._optimizer: ref[torch.optim.Optimizer] | None = None
        self._devices: list[_Device] = []
        self._left = STEPS

    @property
    def twice_bytes(self) -> list[int]:
        """Of each device; nothing, if no step was followed."""
        if self._left == STEPS:
            return []
        return [device.most_bytes() for device in self._devices]

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Follow the steps of the block."""
        hooks = (
            register_optimizer_step_pre_hook(self._updates),
            register_optimizer_step_post_hook(self._updated),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _is_followed(self, optimizer: torch.optim.Optimizer) -> bool:
        self._optimizer = self._optimizer or ref(optimizer)
        return self._left > 0 and self._optimizer() is optimizer

    def _updates(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self._is_followed(optimizer):
            for device in self._devices:
                device.updates()

    def _updated(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if not self._is_followed(optimizer):
            return
        if not self._devices:
            self._devices = [_Device(memory) for memory in self._rt.memories]
            return
        self._left -= 1
        gradients = set(_gradients_of(optimizer))
        for device in self._devices:
            device.updated(gradients)
            if not self._left:
                device.leave()


def _gradients_of(optimizer: torch.optim.Optimizer) -> Iterator[int]:
    """The ids of the allocations of its parameters' gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield from map(id, _allocations(parameter.grad))


def _allocations(tensor: torch.Tensor) -> Iterator[object]:
    if is_traceable_wrapper_subclass(tensor):  # such as a DTensor
        for name in tensor.__tensor_flatten__()[0]:
            yield from _allocations(getattr(tensor, name))
    elif hasattr(tensor, "vgpu_allocation"):
        yield tensor.vgpu_allocation
