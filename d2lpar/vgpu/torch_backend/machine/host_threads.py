"""Host threads: whose time it takes to queue an operation, whatever threads really do.

The work of the thread that owns the virtual machine (the main one) is put on the clock at once.
Replicas of `nn.DataParallel` are threads too: what they do is noted, and put on the clock in the
order of their ranks when all have ended. They share one host thread, as Python threads share the
interpreter lock, and the times do not depend on how the operating system interleaved them. The work
of any other thread is noted until the owner goes on, thread after thread in the order of their
devices. The backward pass of one call has a host thread per device, as autograd has.

A virtual rank is a thread that stands for a process: it has a host thread of its own, and its work
goes on the clock at once, as ranks take turns. So does what the threads of a process do that has
others beside it, as these may wait for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

from ....timeline.host_processes import MAIN
from ...device_naming import text
from ...races.call_sites import line_here
from ...sim.clock import Clock, HostThread
from ..private import torch_autograd
from . import op_details

HOST = -1  # stands for "no device" where a device's number is expected
NO_TASK = torch_autograd.NO_TASK

Answer = TypeVar("Answer")
Notes = deque[tuple[int, int, Callable[..., object], tuple]]


class HeldBack(Protocol):
    """Work that is not on the clock yet, as more may become part of it."""

    def launch(self) -> None:
        """Put it there."""


class _Thread(threading.local):
    """What a thread has noted, as a replica or for the owner; its backward passes, inner last."""

    def __init__(self) -> None:
        self.replica: Notes | None = None
        self.captures = False  # so that what is noted takes no time
        self.notes: Notes = deque()
        self.tasks: list[int] = []
        self.host_thread: HostThread | None = None
        self.held: HeldBack | None = None
        self.line = ""  # of what is put on the clock later than the program has asked for it


class HostThreads:
    """Puts what threads do on a clock, in an order that is always the same.

    `lock` is held by the thread that does so.
    """

    def __init__(self, clock: Clock, owner: int | None) -> None:
        self.clock = clock
        self._owner = owner
        self.notes_others = True  # what threads do that are not the owner
        self._backward: dict[int, dict[int, HostThread]] = {}
        self._outer_task: dict[int, int] = {}
        self._thread = _Thread()
        self._waiting: list[Notes] = []
        self._ranks: list[HostThread] = []
        self.lock = threading.RLock()

    def submit(self, device: int, action: Callable[..., object], *args: object) -> None:
        """Run `action(host_thread, *args)` on the one that queues for `device` in this thread."""
        thread = self._thread
        if thread.held is not None:
            self.let_go()
        task = self._follow_backward()
        own = thread.host_thread
        if own is None and self._is_owner():
            own = self.clock.host
        if self.clock.timelines:
            action = partial(_at_line, thread.line or line_here(), action)
        if own is None or thread.replica is not None or self._waiting:
            self._put(task, device, action, args)
            return
        with self.lock:
            action(own if task == NO_TASK else self._host_thread(task, device), *args)

    def put(self, task: int, device: int, action: Callable[..., object], *args: object) -> None:
        """The same for work that was held back in backward pass `task` (`NO_TASK`: in none)."""
        self._put(task, device, action, args)

    @property
    def held(self) -> HeldBack | None:
        """What this thread holds back until it queues something else."""
        return self._thread.held

    @held.setter
    def held(self, work: HeldBack) -> None:
        self._follow_backward()  # whose end lets go of it
        self._thread.held, self._thread.line = work, line_here() if self.clock.timelines else ""

    def let_go(self) -> None:
        """Put what this thread holds back on the clock."""
        held, self._thread.held = self._thread.held, None
        if held is not None:
            with op_details.carrying_out(None):
                held.launch()
        self._thread.line = ""

    def flush(self) -> None:
        """Put everything that threads other than replicas have noted so far on the clock."""
        self.let_go()
        with self.lock:
            waiting, self._waiting = self._waiting, []
            with op_details.carrying_out(None):
                for notes in sorted(waiting, key=_first_device):
                    while notes:
                        self._run(*notes.popleft())

    def settle(self) -> None:
        """Work out when all that was queued so far begins and ends, also in the future."""
        with self.lock:
            self.flush()
            self.clock.settle()

    def ask(self, question: Callable[..., Answer], *args: object) -> Answer:
        """The answer `question(host_thread, *args)` of the clock, all noted work included.

        Raises RuntimeError in a replica, whose work has no times before all replicas have ended.
        """
        if self._thread.replica is not None and not self._thread.captures:
            raise RuntimeError(
                "the simulated clock cannot be read inside a replica of nn.DataParallel: its times "
                "are known when all replicas are done; read the clock then, or record() a timeline"
            )
        with self.lock:
            self.flush()
            host_thread = self._host_thread(torch_autograd.graph_task_id(), HOST)
            if self.clock.timelines:
                host_thread.line = line_here()
            return question(host_thread, *args)

    def now_s(self) -> float:
        """The time of the host. Raises RuntimeError in a replica, as `ask` does."""
        return self.ask(lambda host_thread: host_thread.now_s)

    def seen(self, device: int) -> HostThread:
        """The thread that queues for a device here, at about its time: without what was noted or
        held back, which stays so."""
        task = torch_autograd.graph_task_id()
        host_thread = self._backward.get(task, {}).get(device)
        return host_thread or self._thread.host_thread or self.clock.host

    def seen_s(self, device: int) -> float:
        """The time of that thread."""
        return self.seen(device).now_s

    @contextmanager
    def replica(self, notes: Notes) -> Iterator[None]:
        """Note the block's work in `notes`, for whoever started it to `replay`."""
        outer, self._thread.replica = self._thread.replica, notes
        try:
            yield
        finally:
            self._thread.replica = outer

    @contextmanager
    def capture(self, notes: Notes) -> Iterator[None]:
        """Note the block's work in `notes`, and let it take no time: a graph has it."""
        before, self._thread.captures = self._thread.captures, True
        try:
            with self.replica(notes):
                yield
        finally:
            self._thread.captures = before

    @contextmanager
    def beside_capture(self) -> Iterator[None]:
        """Put the block's work on the clock, also in a capture."""
        if not self._thread.captures:
            yield
            return
        noted, self._thread.replica, self._thread.captures = self._thread.replica, None, False
        try:
            yield
        finally:
            self._thread.replica, self._thread.captures = noted, True

    @property
    def process(self) -> HostThread | None:
        """What stands for this thread's process: the host thread of its virtual rank. A thread that
        is none's own belongs to the only one, if there is one."""
        own = self._thread.host_thread
        return self._ranks[0] if own is None and len(self._ranks) == 1 else own

    @contextmanager
    def rank(self, host_thread: HostThread) -> Iterator[None]:
        """Put the block's work on a host thread of its own, at once: one of them runs at a time."""
        self._thread.host_thread = host_thread
        self._ranks.append(host_thread)
        try:
            yield
        finally:
            self._thread.host_thread = None
            self._ranks.remove(host_thread)

    def replay(self, notes: Notes) -> None:
        """Put a replica's work on the clock (in a replica of replicas: note it as its own)."""
        while notes:
            self._put(*notes.popleft())

    def _put(self, task: int, device: int, action: Callable[..., object], args: tuple) -> None:
        thread = self._thread
        if thread.replica is not None:
            thread.replica.append((task, device, action, args))
        elif thread.host_thread is not None or self._is_owner():
            with self.lock:
                if self._waiting:
                    self.flush()
                self._run(task, device, action, args)
        else:
            with self.lock:
                thread.notes.append((task, device, action, args))
                if not any(notes is thread.notes for notes in self._waiting):
                    self._waiting.append(thread.notes)

    def _is_owner(self) -> bool:
        return threading.get_ident() == self._owner or not self.notes_others

    def _run(self, task: int, device: int, action: Callable[..., object], args: tuple) -> None:
        action(self._host_thread(task, device), *args)

    # --- backward passes --------------------------------------------------------------------

    def _host_thread(self, task: int, device: int) -> HostThread:
        if task == NO_TASK:
            return self._thread.host_thread or self.clock.host
        host_threads = self._backward.get(task)
        if host_threads is None:
            host_threads = self._backward[task] = {}
        if device not in host_threads:
            name = "thread for the host" if device == HOST else f"thread for {text(device)}"
            process = (self._thread.host_thread or self.clock.host).name
            if process != MAIN:
                name = f"{process}, {name}"
            caller = self._host_thread(self._outer_task.get(task, NO_TASK), device)
            thread = host_threads[device] = self.clock.branch(caller, name)
            handing_s = self.clock.machine.host.backward_s
            if handing_s:
                self.clock.host_work(thread, handing_s, "hand over to autograd's thread")
        return host_threads[device]

    def _follow_backward(self) -> int:
        """The pass under way, of which this notices that it begins, perhaps within another, or that
        others ended by an error."""
        task, tasks = torch_autograd.graph_task_id(), self._thread.tasks
        if task == (tasks[-1] if tasks else NO_TASK):
            return task
        if task == NO_TASK or task in tasks:
            while tasks and tasks[-1] != task:
                self._leave_backward(tasks, tasks[-1])
            return task
        self._outer_task[task] = tasks[-1] if tasks else NO_TASK
        tasks.append(task)
        torch_autograd.at_end_of_backward(lambda: self._leave_backward(tasks, task))
        return task

    def _leave_backward(self, tasks: list[int], task: int) -> None:
        self.let_go()
        if task in tasks:
            tasks.remove(task)
            self._put(NO_TASK, HOST, self._join, (task,))

    def _join(self, _: object, task: int) -> None:
        """Let the caller of a backward pass go on when its host threads have queued their last."""
        host_threads = self._backward.pop(task, {})
        outer = self._outer_task.pop(task, NO_TASK)
        for device in host_threads if outer != NO_TASK else [HOST]:
            self.clock.gather(self._host_thread(outer, device), [*host_threads.values()])


def _at_line(
    line: str, action: Callable[..., object], host_thread: HostThread, *args: object
) -> None:
    """Run an action whose spans are of a line of the program."""
    host_thread.line = line
    action(host_thread, *args)


def _first_device(notes: Notes) -> int:
    return min((device for _, device, _, _ in notes if device != HOST), default=HOST)
