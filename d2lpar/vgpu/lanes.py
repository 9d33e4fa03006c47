"""Host lanes: whose time it takes to queue an operation, whatever threads really do.

The main thread's work is put on the clock at once. The work of other threads (the replicas of
`nn.DataParallel`) is noted and put on the clock when the main thread goes on, thread after thread
in the order of their devices: they share one lane, as Python threads share the interpreter lock, and
the times do not depend on how the operating system interleaved them. The backward pass of one call
has a lane a device, as autograd has a thread a device.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from . import _torch
from .clock import Clock, Lane

HOST = -1  # stands for "no device" where a device's number is expected


class _Queue:
    """The work that one thread other than the main one has noted."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.notes: deque[tuple[int, int, Callable[..., object], tuple]] = deque()

    @property
    def order(self) -> tuple[int, int]:
        devices = [device for _, device, _, _ in self.notes if device != HOST]
        return (min(devices, default=HOST), self.number)


class HostLanes:
    """Puts what threads do on a clock, in an order that is always the same."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._backward: dict[int, dict[int, Lane]] = {}
        self._main = threading.main_thread().ident
        self._local = threading.local()
        self._queues: list[_Queue] = []
        self._lock = threading.Lock()

    def submit(self, device: int, action: Callable[..., object], *args: object) -> None:
        """Run `action(lane, *args)` on the lane that queues work for `device` in this thread."""
        task = _torch.graph_task_id()
        if task != -1:
            self._watch_backward(task)
        if threading.get_ident() == self._main:
            if self._queues:
                self.flush()
            action(self._lane(task, device), *args)
        else:
            self._queue().notes.append((task, device, action, args))

    def flush(self) -> None:
        """Put everything that other threads have noted so far on the clock."""
        with self._lock:
            queues, self._queues = self._queues, []
        for queue in sorted(queues, key=lambda q: q.order):
            while queue.notes:
                task, device, action, args = queue.notes.popleft()
                action(self._lane(task, device), *args)

    def now_s(self) -> float:
        """The time of the host, all noted work included."""
        self.flush()
        return self._lane(_torch.graph_task_id(), HOST).now_s

    def _lane(self, task: int, device: int) -> Lane:
        if task == -1:
            return self.clock.host
        lanes = self._backward.setdefault(task, {})
        if device not in lanes:
            lanes[device] = Lane(f"backward {device}", self.clock.host.now_s)
        return lanes[device]

    def _watch_backward(self, task: int) -> None:
        watched = self._local.__dict__.setdefault("tasks", set())
        if task not in watched:
            watched.add(task)
            _torch.at_end_of_backward(lambda: self._leave_backward(task))

    def _leave_backward(self, task: int) -> None:
        """Let the caller go on when the lanes of its backward pass have queued their last."""
        self._local.tasks.discard(task)
        if threading.get_ident() == self._main:
            self._join(None, task)
        else:
            self._queue().notes.append((-1, HOST, self._join, (task,)))

    def _join(self, _: object, task: int) -> None:
        lanes = self._backward.pop(task, {}).values()
        self.clock.host.now_s = max([self.clock.host.now_s, *(lane.now_s for lane in lanes)])

    def _queue(self) -> _Queue:
        queue = self._local.__dict__.get("queue")
        with self._lock:
            if queue is None:
                number = self._local.queue_number = getattr(self, "_threads", 0)
                self._threads = number + 1
                queue = self._local.queue = _Queue(number)
            if queue not in self._queues:
                self._queues.append(queue)
        return queue
