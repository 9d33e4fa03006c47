"""Futures of collectives: what communication hooks chain their callbacks to.

As in torch over NCCL, the host never waits for a future. `wait()` lets the current stream wait for
what computes the value; a callback of `then` runs at once, on a further stream that waits for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...torch_backend.machine.host_threads import HOST
from ...torch_backend.machine.runtime import current_runtime
from ...torch_backend.module.streams import Stream
from ...torch_backend.tensors.tensor import VirtualTensor

Callback = Callable[[torch.futures.Future], Any]


class CollectiveFuture(torch.futures.Future):
    """A value that is there when `let_wait()` has let the current stream of `device` wait; on the
    host (`HOST`), when it has waited."""

    def __init__(self, device: int, value: object, let_wait: Callable[[], object]) -> None:
        super().__init__()
        self.device, self._let_wait = device, let_wait
        self.set_result(value)

    def wait(self) -> Any:
        """Let the current stream wait for the value, and return it."""
        self._let_wait()
        value = self.value()
        if self.device == HOST:
            return value
        current = _current_stream(self.device)
        for tensor in tree_leaves(value):
            if isinstance(tensor, VirtualTensor):
                tensor.record_stream(current)  # it may have been made on another stream
        return value

    def then(self, callback: Callback) -> torch.futures.Future:
        """A future of what `callback(self)` returns, which is called at once on a stream of its
        own. An error is raised by whoever asks for the value."""
        if self.device == HOST:
            return self._then_on_host(callback)
        rt = current_runtime()
        stream = Stream.existing(self.device, rt.new_stream(self.device))
        with stream:
            self.wait()
            try:
                value = callback(self)
            except Exception as error:
                failed: torch.futures.Future = torch.futures.Future()
                failed.set_exception(error)
                return failed
            done = stream.record_event()
        return CollectiveFuture(
            self.device, value, lambda: _current_stream(self.device).wait_event(done)
        )

    def _then_on_host(self, callback: Callback) -> torch.futures.Future:
        self.wait()
        return super().then(callback)

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback(self)` at once, on a stream of its own."""
        self.then(callback)


def collecting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.futures.collect_all`, whose future lets the current stream wait for all of them."""

    @functools.wraps(theirs)
    def collect_all(futures: list[torch.futures.Future]) -> torch.futures.Future:
        ours = [each for each in futures if isinstance(each, CollectiveFuture)]
        if not ours or len(ours) < len(futures):
            return theirs(futures)
        found = list(futures)
        return CollectiveFuture(ours[0].device, found, lambda: [each.wait() for each in ours])

    return collect_all


def waiting_all(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.futures.wait_all`, which lets the current stream wait for all of them."""

    @functools.wraps(theirs)
    def wait_all(futures: list[torch.futures.Future]) -> list:
        if any(isinstance(each, CollectiveFuture) for each in futures):
            return [each.wait() for each in futures]
        return theirs(futures)

    return wait_all


def _current_stream(device: int) -> Stream:
    return Stream.existing(device, current_runtime().current_stream(device))
