"""What a collective under way is to who has begun it: something to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from ...signals import closed_to_handlers
from ...torch_backend.machine.host_threads import HOST
from ...torch_backend.machine.runtime import current_runtime
from ...torch_backend.module.graph_capture import CUDAGraph, capturing
from ...torch_backend.tensors.tensor import VirtualTensor
from ..calls.collective_calls import CollectiveCall
from ..private import c10d as c10d_private
from ..world import nccl_debug
from ..world.exchange import Exchange
from ..world.rank import Rank
from .collective_future import CollectiveFuture


class CollectiveWork(c10d_private.WorkBase):
    """A collective under way on one rank."""

    def __init__(
        self,
        rank: Rank,
        exchange: Exchange,
        call: CollectiveCall,
        stream: tuple[int, int] | None,
        *,
        must_block: bool,
    ) -> None:
        super().__init__()
        self._rank, self._exchange, self._call = rank, exchange, call
        self._stream, self._must_block = stream, must_block
        self._is_waited_for = False
        rt = rank.world.rt
        self._known = {} if stream is None else rt.order.release(stream)

    @closed_to_handlers
    def __del__(self) -> None:
        """A collective that nobody has waited for keeps its tensors: see `unwaited`."""
        if self._stream is not None and not self._is_waited_for:
            tensors = [t for t in self._call.tensors if isinstance(t, VirtualTensor)]
            for tensor in tensors:
                tensor.vgpu_allocation.used_by(self._stream[1])
            self._rank.unwaited.keep(self._exchange, tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let later work of the current stream come after it; the host goes on at once, or if it
        takes part in the exchange itself, when that is over.

        With a `timeout` the host waits, and it raises DistBackendError where others come later, or
        never; without, that ends all ranks, with the same words. Over gloo it is a RuntimeError, in
        any case.
        """
        self._is_waited_for = True
        report = self._exchange.come(timeout)
        if report:
            raise self._exchange.timed_out(timeout, report)
        rt = self._rank.world.rt
        if self._stream is None:
            self._exchange.check_in_time(timeout)
            self._block()
            return True
        device = self._stream[0]
        current = (device, rt.current_stream(device))
        rt.host_threads.submit(device, self._exchange.delay, current)
        rt.order.acquire(current, self._known)
        if self._must_block or timeout or nccl_debug.is_blocking():
            self._exchange.check_in_time(timeout)
            self._block()
        return True

    def synchronize(self) -> None:
        """The same, by the name that c10d gives it."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors that it writes."""
        return list(self._call.writes)

    def get_future(self) -> torch.futures.Future:
        """A future of `result()`. The host goes on at once, in simulated time; the others' calls
        are waited for, as values are there only then."""
        self._exchange.come()
        device = HOST if self._stream is None else self._stream[0]
        return CollectiveFuture(device, self.result(), self.wait)

    def is_completed(self) -> bool:
        """Whether it is done by now, as this rank's host sees it; to ask takes it a moment."""
        rt = self._rank.world.rt
        self._exchange.let_others_go_on("is_completed")
        if not rt.asks("is_completed", None, self._exchange.is_done):
            return False
        rt.host_acquires(self._known)
        return True

    def _block(self) -> None:
        rt, name = self._rank.world.rt, f"wait for {self._call.name}"
        with rt.meeting_host(name):
            rt.host_threads.submit(HOST, self._exchange.block, name)
        rt.host_acquires(self._known)

    def block_current_stream(self) -> None:
        """The same, by a name that says what it does."""
        self.wait()


class CapturedWork(c10d_private.WorkBase):
    """A collective that became part of a CUDA graph: each replay `begin`s it, and waits for it
    where the capture did."""

    def __init__(
        self,
        graph: CUDAGraph,
        name: str,
        begin: Callable[[], CollectiveWork],
        tensors: Sequence[torch.Tensor],
        device: int,
    ) -> None:
        super().__init__()
        self._graph, self._begin, self._tensors, self._device = graph, begin, tensors, device
        self._name = name
        self._under_way: CollectiveWork | None = None
        self._is_open = True
        graph.keep(tensors)
        graph.call(self._replay)
        graph.begun.append(name)

    def _replay(self) -> None:
        self._under_way = self._begin()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let what is captured after it come after it. RuntimeError when the capture has ended."""
        if capturing() is not self._graph:
            raise RuntimeError(
                "this collective was captured into a CUDA graph: wait for it before the capture "
                "ends"
            )
        self._graph.call(self._replay_wait)
        if self._is_open:
            self._graph.begun.remove(self._name)
            self._is_open = False
        if self._name == "barrier":  # for which the host waits, too
            rt = current_runtime()
            rt.synchronize_stream(self._device, rt.current_stream(self._device), "barrier")
        return True

    def _replay_wait(self) -> None:
        assert self._under_way is not None, "a replay begins what it waits for"
        self._under_way.wait()

    synchronize = block_current_stream = wait

    def result(self) -> list[torch.Tensor]:
        """The tensors of the call."""
        return list(self._tensors)

    def get_future(self) -> torch.futures.Future:
        """A future of `result()`; callbacks are captured, too."""
        return CollectiveFuture(self._device, self.result(), self.wait)

    def is_completed(self) -> bool:
        """Refused, as all that is asked of what a capture holds: AcceleratorError."""
        raise self._graph.refused("is_completed")


AnyWork = CollectiveWork | CapturedWork


class WorkTogether(c10d_private.WorkBase):
    """Several collectives or sends that a program has begun as one."""

    def __init__(self, works: Sequence[AnyWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let later work of the current stream come after all of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    synchronize = block_current_stream = wait

    def result(self) -> list[torch.Tensor]:
        """The tensors that they write."""
        return [tensor for work in self._works for tensor in work.result()]

    def is_completed(self) -> bool:
        """Whether all are done by now."""
        return all(work.is_completed() for work in self._works)
