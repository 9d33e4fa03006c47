"""Queues between virtual processes: what one puts there is copied as by pickling."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty

from ..ranks.launcher import wait_in_turn
from ..ranks.pickled_copy import PickledCopy


class VirtualQueue:
    """`multiprocessing.Queue`, `SimpleQueue` and `JoinableQueue` of the program's.

    `run_children` lets the processes run that wait for their turn; the program that started them
    calls it when it waits for an item.
    """

    def __init__(self, run_children: Callable[[], None]) -> None:
        self._items: deque[PickledCopy] = deque()
        self._run_children = run_children

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Append a copy of an item; there is always room."""
        self._items.append(PickledCopy(item, [VirtualQueue]))

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        """Take the first item, waiting for it. Raises queue.Empty if nobody will put one."""
        if not self._items and not wait_in_turn(lambda: bool(self._items), "Queue.get", block):
            self._run_children()
        if not self._items:
            raise Empty("the queue is empty, and no process is left that could put an item")
        return self._items.popleft().load()

    def put_nowait(self, item: object) -> None:
        """Append a copy of an item."""
        self.put(item)

    def get_nowait(self) -> object:
        """Take the first item. Raises queue.Empty."""
        return self.get(block=False)

    def empty(self) -> bool:
        """Whether no item is there."""
        return not self.qsize()

    def full(self) -> bool:
        """False: there is always room."""
        return False

    def qsize(self) -> int:
        """How many items are there when others have gone on."""
        if not self._items and not wait_in_turn(lambda: True, "Queue.empty", block=True):
            self._run_children()
        return len(self._items)

    def close(self) -> None:
        """Nothing is left to close."""

    join_thread = cancel_join_thread = task_done = join = close
