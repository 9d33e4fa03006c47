"""On which streams a backward pass runs, and what autograd orders by itself.

As in PyTorch ("Stream semantics of backward passes"): an operation runs on the stream of its
forward operation; all streams of the pass wait for the work of the caller's current streams, and
these wait for the pass; and within it a stream waits for the others where a gradient goes over.
Gradients are added up in a leaf on the stream of the first operation that has used it since its
last gradient: there autograd made the node that adds them up. (In the capture of a graph, on the
caller's: what was made before it is taken to be gone, as by torch's recipe it is.) Forward
operations are told apart by autograd's numbers, which grow within a thread; those of other threads
count as the caller's.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from weakref import ref

import torch

from ...races.vector_clock import Access, StreamKey, VectorClocks, join
from ..private import torch_autograd

KEPT_SWITCHES = 50_000
KEPT_PASSES = 16


class BackwardPass:
    """One backward pass: its caller's streams, those that it has used so far, and those that hooks
    have `chosen` within it, now or before; what was `known` to be done when it began, and in which
    epochs."""

    def __init__(
        self, order: VectorClocks, caller: dict[int, int], devices: int, *, within: bool
    ) -> None:
        self.caller = caller
        self.within = within  # another pass, which has ordered what came before
        self.used: set[StreamKey] = set()
        self.chosen: dict[int, int] = {}
        self.of_hooks: set[StreamKey] = set()
        self.known: dict[StreamKey, int] = {}
        self.leaves: list[int] = []  # that have got a gradient, by their ids
        for stream in [(d, caller.get(d, 0)) for d in range(devices)]:
            join(self.known, order.release(stream))
        self.begun = order.advance()

    def contains(self, access: Access) -> bool:
        """Whether the access is later than the pass's begin, or ordered by the pass around it."""
        return self.within or access[1] >= self.begun.get(access[0], 1)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.streams: list[dict[int, int]] = []
        self.passes: dict[int, BackwardPass] = {}


class AutogradStreams:
    """Remembers which streams were current when; `wait(stream, other)` lets one wait for another,
    and `captured_in(stream)` is the capture that holds it.

    `wait` must move the clock and the order of streams alike.
    """

    def __init__(
        self,
        order: VectorClocks,
        wait: Callable[[StreamKey, StreamKey], None],
        captured_in: Callable[[StreamKey], object],
    ) -> None:
        self.order = order
        self._wait, self._captured_in = wait, captured_in
        self._thread = _Thread()
        # By id, with a reference that forgets it: a tensor as a key would be compared by values.
        self._leaves: dict[int, tuple[ref[torch.Tensor], int]] = {}

    def used(self, tensors: Iterable[torch.Tensor], number: int) -> None:
        """An operation of a device's stream of that number uses tensors; autograd sees it."""
        for tensor in tensors:
            if id(tensor) not in self._leaves and torch_autograd.is_leaf(tensor):
                forget = partial(self._forget, id(tensor))
                self._leaves[id(tensor)] = (ref(tensor, forget), number)

    def _forget(self, leaf: int, _: object = None) -> None:
        self._leaves.pop(leaf, None)

    def switched(self, streams: dict[int, int]) -> None:
        """Note that from now on these streams are current, by device."""
        thread = self._thread
        number = torch_autograd.next_node_number()
        if thread.numbers and thread.numbers[-1] == number:
            thread.streams[-1] = dict(streams)
            return
        thread.numbers.append(number)
        thread.streams.append(dict(streams))
        if len(thread.numbers) > KEPT_SWITCHES:
            del thread.numbers[: KEPT_SWITCHES // 2], thread.streams[: KEPT_SWITCHES // 2]

    def stream(self, task: int, device: int, current: dict[int, int], devices: int) -> int:
        """The stream of `device` on which the operation under way of pass `task` runs."""
        this = self._pass(task, current, devices)
        if device in this.chosen:
            return this.chosen[device]
        number = self._forward_stream(device, this)
        stream, caller = (device, number), (device, this.caller.get(device, 0))
        if stream not in this.used:
            this.used.add(stream)
            if stream != caller:
                self._wait(stream, caller)
                self.order.acquire(stream, this.known)
        return number

    def choose(
        self, task: int, device: int, number: int, current: dict[int, int], devices: int
    ) -> None:
        """A hook switches streams within pass `task`: until it switches back to autograd's."""
        this = self._pass(task, current, devices)
        this.chosen.pop(device, None)
        if number != self._forward_stream(device, this):
            this.chosen[device] = number
            this.of_hooks.add((device, number))

    def _pass(self, task: int, current: dict[int, int], devices: int) -> BackwardPass:
        passes = self._thread.passes
        if task not in passes:
            while len(passes) >= KEPT_PASSES:  # an error has ended them
                del passes[next(iter(passes))]
            passes[task] = BackwardPass(self.order, dict(current), devices, within=bool(passes))
            torch_autograd.at_end_of_backward(lambda: self._finish(task))
        return passes[task]

    def _forward_stream(self, device: int, this: BackwardPass) -> int:
        thread = self._thread
        number = torch_autograd.node_number()
        if number is None:
            return self._leaf_stream(device, this)
        at = bisect_right(thread.numbers, number)
        return thread.streams[at - 1].get(device, 0) if at else 0

    def _leaf_stream(self, device: int, this: BackwardPass) -> int:
        """Where a leaf gets its gradient; the caller's stream if nobody has seen it used."""
        leaf = torch_autograd.leaf_of_node()
        if leaf is None or getattr(leaf, "vgpu_index", None) != device:
            return this.caller.get(device, 0)
        this.leaves.append(id(leaf))
        known, caller = self._leaves.get(id(leaf)), this.caller.get(device, 0)
        if known is None or self._captured_in((device, caller)):
            return caller
        return known[1]

    def order_in_pass(self, before: Access, stream: StreamKey) -> bool:
        """Let `stream` wait for an access, if it is one of the pass under way; autograd does not
        do so for streams that a hook has chosen, nor for what happens there."""
        task = torch_autograd.graph_task_id()
        this = self._thread.passes.get(task)
        if this is None or not this.contains(before):
            return False
        if this.chosen.get(stream[0]) == stream[1] or before[0] in this.of_hooks - this.used:
            return False
        self._wait(stream, before[0])
        return True

    def let_arrive(self, stream: StreamKey) -> None:
        """A hook marks how far `stream` has come, while a leaf gets its gradient there: autograd
        has let that stream wait for what has computed the gradient."""
        task = torch_autograd.graph_task_id()
        this = self._thread.passes.get(task)
        leaf = None if this is None else torch_autograd.leaf_of_node()
        memory = None if leaf is None else getattr(leaf.grad, "vgpu_allocation", None)
        if this is None or memory is None or self._leaf_stream(stream[0], this) != stream[1]:
            return
        uses = [memory.written] if memory.history is None else [u[2] for u in memory.history.writes]
        for access in uses:
            if access is not None and not self.order.is_before(access, stream):
                self.order_in_pass(access, stream)

    def _finish(self, task: int) -> None:
        this = self._thread.passes.pop(task, None)
        if this is None:
            return
        for leaf in this.leaves:
            self._forget(leaf)
        for device, number in sorted(this.used):
            caller = (device, this.caller.get(device, 0))
            if (device, number) != caller:
                self._wait(caller, (device, number))
