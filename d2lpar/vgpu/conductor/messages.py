"""Messages through a connection, which a program's handlers of signals may interrupt anywhere.

A handler may raise, or send and receive itself. So what is read joins what came before, and what is
written is struck off, within one call of C: Python runs handlers when such a call returns, and then
what it returns may be lost.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection

from ..signals import waits_for_others

AT_ONCE = 1 << 16  # bytes that are read together
# What a `Connection` writes before a message: its length, from 2 GiB on -1 and a longer one.
LENGTH, LONG_LENGTH = struct.Struct("!i"), struct.Struct("!iQ")
LONGEST = 0x7FFFFFFF


def framed(message: bytes) -> bytes:
    """A message as the other end's `Connection` takes it."""
    size = len(message)
    return (LENGTH.pack(size) if size <= LONGEST else LONG_LENGTH.pack(-1, size)) + message


class Messages:
    """One end of a connection whose other end is a `Connection`. One thread may receive at a time,
    and one write, but for handlers of signals in it. Raises OSError once it is closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.leaving = bytearray()  # what `write` is to write: whole frames are added
        self._came = bytearray()
        self._used = 0  # messages so far
        number = connection.fileno()
        os.set_blocking(number, False)  # or the system would go on with a call after a handler
        self._read, self._write = partial(os.read, number, AT_ONCE), partial(os.write, number)

    def write(self, *, reads: bool) -> None:
        """Write all that is to leave. `reads` what comes meanwhile: unless another thread
        does, the two ends might wait for one another."""
        while self.leaving:
            self._check_open()
            written = map(slice, map(self._write, (self.leaving,)))
            try:
                [*map(self.leaving.__delitem__, written)]
            except BlockingIOError:
                if self._wait(select.POLLOUT | select.POLLIN * reads) & select.POLLIN:
                    self._read_more()

    def receive(self, use: Callable[[bytearray], None]) -> None:
        """Wait for a message, let it be used, and forget it then. Where a handler interrupts its
        use, it may be used again. Raises EOFError if no more can come."""
        while (first := self._first()) is None:
            self._check_open()
            self._wait(select.POLLIN)
            if not self._read_more():
                raise EOFError
        number, message, end = first
        use(message)
        if number == self._used:  # no call follows, so that no handler comes between
            del self._came[:end]
            self._used = number + 1

    def close(self) -> None:
        """Let the other end know that this was all."""
        self._connection.close()

    def _first(self) -> tuple[int, bytearray, int] | None:
        """The number of the first message, it, and where its frame ends; None: not all is here."""
        number = self._used
        begin, end = _frame(self._came)
        if not 0 < end <= len(self._came):
            return None
        message = self._came[begin:end]
        return (number, message, end) if number == self._used else None

    def _read_more(self) -> bool:
        """Read what has come, unless a handler did. False if no more can come."""
        with suppress(BlockingIOError):
            return bool([*map(self._came.__iadd__, islice(iter(self._read, b""), 1))])
        return True

    @waits_for_others
    def _wait(self, events: int) -> int:
        poll = select.poll()  # one for each, as a handler may wait, too
        poll.register(self._connection, events)
        return poll.poll()[0][1]

    def _check_open(self) -> None:
        if self._connection.closed:  # and others may have its number
            raise OSError("the connection is closed")


class PipeMessages(Messages):
    """The same for a pipe of Windows, which keeps messages whole, and nobody is interrupted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.leaving = bytearray()

    def write(self, *, reads: bool) -> None:
        """Write all that is to leave."""
        while self.leaving:
            begin, end = _frame(self.leaving)
            self._connection.send_bytes(self.leaving[begin:end])
            del self.leaving[:end]

    def receive(self, use: Callable[[bytearray], None]) -> None:
        """Wait for a message, and let it be used. Raises EOFError if no more can come."""
        use(bytearray(self._connection.recv_bytes()))


def _frame(read: bytearray) -> tuple[int, int]:
    """Where the first message begins and ends; 0, 0 where its length is not there yet."""
    for length in (LENGTH, LONG_LENGTH):
        if len(read) < length.size:
            break
        size = length.unpack_from(read)[-1]
        if size >= 0:
            return length.size, length.size + size
    return 0, 0
