"""Queues and pipes between virtual processes: what one puts there is copied as by pickling."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty

from .shared import Parcel, Shared


class VirtualQueue(Shared):
    """`multiprocessing.Queue`, `SimpleQueue` and `JoinableQueue` of the program's."""

    def __init__(self, run_children: Callable[[], None]) -> None:
        super().__init__(run_children)
        self._items: deque[Parcel] = deque()
        self._unfinished = 0

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Append a copy of an item; there is always room."""
        self._items.append(Parcel(item))
        self._unfinished += 1

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        """Take the first item, waiting for it. Raises queue.Empty if nobody will put one."""
        try:
            there = self.wait_until(
                lambda: bool(self._items), "Queue.get", block=block, timeout=timeout
            )
        except RuntimeError as error:
            text = "the queue is empty, and no process is left that could put an item"
            raise Empty(text) from error
        if not there:
            raise Empty("the queue is empty")
        return self._items.popleft().open()

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
        self.wait_until(lambda: bool(self._items), "Queue.empty", block=False)
        return len(self._items)

    def task_done(self) -> None:
        """Say that an item is dealt with. ValueError if there were not so many."""
        if not self._unfinished:
            raise ValueError("task_done() called too many times")
        self._unfinished -= 1

    def join(self) -> None:
        """Wait until as many items are dealt with as were put there."""
        self.wait_until(lambda: not self._unfinished, "JoinableQueue.join")

    def close(self) -> None:
        """Nothing is left to close."""

    join_thread = cancel_join_thread = close


class VirtualConnection(Shared):
    """One end of `multiprocessing.Pipe()`: what is sent here, the other end receives."""

    def __init__(self, run_children: Callable[[], None]) -> None:
        super().__init__(run_children)
        self.received: deque[Parcel] = deque()
        self.peer: VirtualConnection | None = None
        self.readable = self.writable = True
        self.closed = False

    def send(self, obj: object) -> None:
        """Send a copy. OSError if this end is closed or receives only."""
        if self.closed or not self.writable or self.peer is None:
            raise OSError("handle is closed" if self.closed else "connection is read-only")
        self.peer.received.append(Parcel(obj))

    def recv(self) -> object:
        """The next object, waiting for it. EOFError if nobody is left that could send one."""
        if self.closed or not self.readable:
            raise OSError("handle is closed" if self.closed else "connection is write-only")
        try:
            self.wait_until(lambda: bool(self.received), "Connection.recv")
        except RuntimeError as error:
            raise EOFError("no process is left that could send something") from error
        return self.received.popleft().open()

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether something can be received, after so many simulated seconds at most."""
        ready = lambda: bool(self.received)  # noqa: E731, as short as what it says
        return self.wait_until(ready, "Connection.poll", block=timeout != 0.0, timeout=timeout)

    def send_bytes(self, buf: bytes, offset: int = 0, size: int | None = None) -> None:
        """Send bytes of a buffer."""
        view = memoryview(buf).cast("B")[offset:]
        self.send(bytes(view if size is None else view[:size]))

    def recv_bytes(self, maxlength: int | None = None) -> object:
        """The next bytes. OSError for more than `maxlength`."""
        received = self.recv()
        if maxlength is not None and isinstance(received, bytes) and len(received) > maxlength:
            raise OSError("got more bytes than maxlength")
        return received

    def close(self) -> None:
        """Let nothing go through this end any more."""
        self.closed = True

    def __enter__(self) -> VirtualConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pipe(
    run_children: Callable[[], None], duplex: bool = True
) -> tuple[VirtualConnection, VirtualConnection]:
    """Two ends, the first of which only receives unless `duplex`."""
    first, second = VirtualConnection(run_children), VirtualConnection(run_children)
    first.peer, second.peer = second, first
    first.writable = second.readable = duplex
    return first, second
