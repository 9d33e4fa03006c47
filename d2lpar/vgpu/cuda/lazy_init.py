"""When CUDA starts in the block, and which devices it finds: those of CUDA_VISIBLE_DEVICES.

As in torch, what uses a device starts CUDA, and so does `torch.cuda.is_available()`; asking for the
number of devices or seeding them does not. From then on the variable changes nothing any more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..api import visible_devices
from ..torch_backend.machine import runtime

NAME = visible_devices.CUDA

_variable = visible_devices.Variable(NAME)
_emulated = 0  # of the process, not of a thread, as whether CUDA is there
_found: list[int] | None = None  # the devices that CUDA found when it started
_node: list[int] | None = None  # in a virtual process, the devices of its machine
_lock = threading.Lock()


def emulated_count() -> int:
    """The number of emulated devices, visible or not; 0 outside an `emulate_cuda` block."""
    return _emulated


def devices_of_host() -> list[int]:
    """The numbers of the virtual devices of the program's host: also of those that it does not see,
    unless the block has gone on without them."""
    if _node is not None:
        return _node
    return [*range(min(_emulated, runtime.current_runtime().device_count))]


def set_emulated_count(count: int) -> None:
    """Say that a block emulates so many devices from now on; 0 when it ends."""
    global _emulated
    _emulated = count


@contextmanager
def unstarted() -> Iterator[None]:
    """CUDA starts anew in the block; a value that the variable gets there is gone after it."""
    text = os.environ.get(NAME)
    backing = runtime.current_runtime().backing
    if backing.type == "cuda":
        torch.cuda.init()  # the real GPU below must not heed what the block says
    with runtime.returning():
        _reset()
        try:
            yield
        finally:
            _reset()
            os.environ.pop(NAME, None)
            if text is not None:
                os.environ[NAME] = text


def _reset() -> None:
    global _found
    _variable.forget()
    _found = None


def is_started() -> bool:
    """Whether CUDA has started, and the program's devices are settled."""
    return _found is not None


def start() -> None:
    """Let CUDA start, if it has not: the program's devices are those that are visible now."""
    global _found
    if _found is not None:
        return
    with _lock:
        if _found is None and _emulated:
            _variable.start()
            _found = _visible()
            if _node is None and _found not in ([], [*range(len(_found))]):
                _go_on_with(_found)
            _begin_on_first()


def first_device() -> int | None:
    """The virtual device that a new thread begins with: `cuda:0`; None while CUDA has not started,
    where it has found none, and in a fork, such as a loader's worker, which can use none."""
    return virtual_number(0) if _found and not runtime.has_forked() else None


def _begin_on_first() -> None:
    rt = runtime.current_runtime()
    if _node is not None and _found and rt.current_device not in _found:
        rt.current_device = _found[0]


def device_count() -> int:
    """How many devices the program sees; before CUDA starts, as the variable is now."""
    return len(_visible() if _found is None else _found)


def restriction() -> str:
    """What the variable does, for messages; empty if it is not heeded."""
    if _variable.text is None or runtime.is_simulated():
        return ""
    count = _emulated if _node is None else len(_node)
    return f"{_variable} shows {device_count()} of the {count} that are emulated"


def _visible() -> list[int]:
    """The visible devices; all of a `simulate` block, which names its own machine."""
    if runtime.is_simulated():
        return [*range(_emulated)]
    if _node is not None:
        return [_node[i] for i in _variable.visible(len(_node))]
    return _variable.visible(_emulated)


def virtual_number(index: int) -> int:
    """The number of the virtual device that a program calls `cuda:index`."""
    return index if _node is None or _found is None else _found[index]


def shown_number(number: int) -> int:
    """What a program calls a virtual device; those that it does not see keep their numbers."""
    if _node is None or _found is None or number not in _found:
        return number
    return _found.index(number)


class ProcessDevices:
    """Which devices a virtual process sees: those of its machine, or what its variable lists.

    What CUDA has found is exchanged when another process goes on.
    """

    def __init__(self, node: list[int] | None = None) -> None:
        self._own: tuple[visible_devices.Variable, list[int] | None, list[int] | None]
        self._own = (visible_devices.Variable(NAME), None, node)

    def save(self) -> None:
        """Keep what the running process has found."""
        self._own = (_variable, _found, _node)

    def restore(self) -> None:
        """Let the running process see these devices."""
        global _variable, _found, _node
        _variable, _found, _node = self._own


@contextmanager
def all_devices() -> Iterator[None]:
    """In the block CUDA has started, and shows the whole machine: to what starts processes and
    watches them. The variable is for these."""
    global _found, _node
    before = _found, _node
    _found = _node = [*range(_emulated)]
    try:
        yield
    finally:
        _found, _node = before


def devices_here() -> list[int]:
    """The virtual devices that the running process sees, by their numbers."""
    start()
    assert _found is not None, "CUDA has started"
    return [virtual_number(i) for i in range(len(_found))]


def _go_on_with(numbers: list[int]) -> None:
    """Take that part of the machine for the rest of the block, at the same time of its clock."""
    before = runtime.current_runtime()
    rt = runtime.start(before.machine.only(numbers), before.backing)
    rt.shape_only = before.shape_only
    for index in range(rt.device_count):
        rt.set_sequence(index, before.sequence(index))
    rt.host_work(before.now_s(), "before CUDA started")
