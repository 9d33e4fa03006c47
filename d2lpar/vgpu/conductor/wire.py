"""Calls from a rank's process to the conductor's objects.

What needs no answer is posted: a list of calls goes when it is long enough, or when something is
asked. So a rank runs ahead of its clock, as a host runs ahead of its GPU. Objects of the conductor
have numbers on a wire, which the rank gives: it names the result of a call before that is made.
"""

from __future__ import annotations

import marshal
import pickle
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from ..signals import closed_to_handlers
from .messages import Messages, PipeMessages, framed

BATCH = 64  # calls that are sent together
POST, MAKE, ASK, READ, WRITE, DROP, NUDGE = range(7)
CLOCK, HOST_THREAD, SEAT = range(3)  # the numbers of what is there from the start
FIRST_FREE = 16
PAUSE_S = 1e-3  # before who was interrupted asks again
Place = tuple[str, int] | None  # a file, and a line of it


class FarObject:
    """An object of the conductor's, as a rank's process has it."""

    __slots__ = ("number", "wire")

    def __init__(self, wire: Wire, number: int | None = None) -> None:
        self.wire = wire
        self.number = wire.next_number() if number is None else number

    @closed_to_handlers
    def __del__(self) -> None:
        if getattr(self, "number", 0) >= FIRST_FREE:  # an interrupt may have come before
            self.wire.drop(self.number)


class Wire:
    """The rank's end, and nobody else reads from the connection any more. `on_answer(done)` is
    called with what each answer brings besides; after a handler of a signal, maybe twice.

    Several threads may ask: one of those that wait reads for all. A handler of a signal may ask
    while its thread waits, and reads what that waits for; a nudge wakes it then.
    """

    def __init__(self, connection: Connection) -> None:
        whole = Messages if hasattr(select, "poll") else PipeMessages
        self._messages = whole(connection)
        self._calls: list[tuple] = []
        self._numbers = FIRST_FREE
        self._is_cut = False
        self.on_answer: Callable[[list[int]], None] = lambda done: None
        self.lock: object = None  # an RLock that a thread may hold which asks
        self.before_each: Callable[[], None] | None = None  # is called before each call is sent
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a rank may have threads
        self._arrived = threading.Condition(self._lock)
        self._reader: int | None = None  # the thread that reads for all
        self._answers: dict[int, tuple[bool | None, Any] | None] = {}  # None: yet to come
        self._threads: set[int] = set()  # that have asked

    def next_number(self) -> int:
        """A number for an object that the next call makes."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def post(self, target: int, method: str, args: tuple) -> None:
        """Call a method whose result nobody needs."""
        self._send((POST, target, method, _packed(args)))

    def make(self, result: FarObject, target: int, method: str, args: tuple) -> None:
        """Call a method whose result stays with the conductor, under the number of `result`."""
        self._send((MAKE, target, method, _packed(args), result.number))

    def wait(self, target: int, method: str, args: tuple, *, answers: bool) -> None:
        """Call a method in which the conductor may wait. If nobody else has anything to say, it
        `answers` only if there is something to wait for here, too."""
        if answers or self.has_threads:
            self.ask(target, method, args)
        else:
            self.post(target, method, args)

    def ask(self, target: int, method: str, args: tuple, place: Place = None) -> Any:
        """The value that a method returns; raises what it raises. The program waits for it at that
        place (None: nobody waits for others there)."""
        return self._answer((ASK, target, method, _packed(args), place))

    def read(self, target: int, attribute: str) -> Any:
        """The value of an attribute."""
        return self._answer((READ, target, attribute, (), None))

    def write(self, target: int, attribute: str, value: object) -> None:
        """Give an attribute a value."""
        self._send((WRITE, target, attribute, value))

    def drop(self, number: int) -> None:
        """Let the conductor forget an object. Called by the garbage collector, so it only notes."""
        self._calls.append((DROP, number))

    def flush(self) -> None:
        """Send what has been posted."""
        with self._lock:
            if self._is_cut:
                self._calls = []
                return
            while calls := self._calls:
                number = len(calls)
                frame = framed(marshal.dumps(calls[:number]))
                if calls is self._calls:  # no call until both is done: no handler comes between
                    self._messages.leaving += frame
                    self._calls = calls[number:]  # what has been added meanwhile
            self._messages.write(reads=self._reader in (None, threading.get_ident()))

    def cut(self) -> None:
        """Send nothing more: this process was forked, and the wire is its parent's."""
        self._calls = []
        self._begin()
        self._is_cut = True
        self._messages.close()  # or the parent's end would go unnoticed

    @property
    def is_cut(self) -> bool:
        """Whether nothing can be sent."""
        return self._is_cut

    def close(self) -> None:
        """Send what has been posted, and end."""
        self.flush()
        self._messages.close()

    def _send(self, call: tuple) -> None:
        if self.before_each is not None:
            self.before_each()
        self._calls.append(call)
        if len(self._calls) >= BATCH:
            self.flush()

    def _answer(self, question: tuple) -> Any:
        """What is answered. Where the conductor breaks a question off, it is asked again."""
        is_value = None
        while is_value is None:
            number = self._asked(question)
            try:
                with self._others_go_on():
                    while (answer := self._received(number)) is None:
                        pass
            finally:  # or nobody wants it any more
                self._answers.pop(number, None)
            is_value, value = answer
            if is_value is None:
                time.sleep(PAUSE_S)
        if is_value:
            return value
        raise value

    @contextmanager
    def _others_go_on(self) -> Iterator[None]:
        """Give up the lock of what happens in turn in this process: what another of its threads
        says may be what this one waits for."""
        lock: Any = self.lock
        if lock is None or not self.has_threads or not lock._is_owned():  # noqa: SLF001
            yield
            return
        held = lock._release_save()  # noqa: SLF001 - as `threading.Condition` gives it up
        try:
            yield
        finally:
            lock._acquire_restore(held)  # noqa: SLF001

    def _asked(self, question: tuple) -> int:
        """Send a question, and give its number."""
        with self._lock:
            if self._is_cut:
                raise RuntimeError(
                    "this process was forked, and the virtual GPUs are those of its parent: use "
                    "the 'spawn' start method, or fork before CUDA is used"
                )
            self._note_thread(threading.get_ident())
            number = self.next_number()
            self._answers[number] = None
            call = (*question, number)
            self._calls.append(call)
            self.flush()
            return number

    @property
    def has_threads(self) -> bool:
        """Whether several threads ask, or may yet."""
        return len(self._threads) > 1 or threading.active_count() > 1

    def _note_thread(self, thread: int) -> None:
        """Let the conductor know of more than one: it cannot see which of them go on."""
        if thread not in self._threads:
            self._threads.add(thread)
            if len(self._threads) == 2:
                self._calls.append((POST, SEAT, "has_threads", ()))

    def _received(self, number: int) -> tuple[bool | None, Any] | None:
        """An answer, if it has come; else read the next, or wait for who does."""
        me = threading.get_ident()
        before = me if self._reader == me else None
        came: int | None = None

        def use(message: bytearray) -> None:
            nonlocal came
            came, is_value, value, done = pickle.loads(message)
            with self._lock:
                if came in self._answers:
                    self._answers[came] = is_value, value
                self.on_answer(done)

        try:
            with self._arrived:
                while self._answers[number] is None and self._reader not in (None, me):
                    self._arrived.wait()
                if self._answers[number] is not None:
                    return self._answers[number]
                self._reader = me
            self._messages.receive(use)
        finally:
            with self._arrived:
                if self._reader == me:
                    self._reader = before
                self._arrived.notify_all()
        if before == me and came != NUDGE:
            self._calls.append((NUDGE,))
            self.flush()
        return self._answers[number]


def _packed(args: tuple) -> tuple:
    """Arguments as `marshal` takes them: objects of the conductor's by their numbers."""
    return tuple(
        [
            complex(arg.number)
            if isinstance(arg, FarObject)
            else [*_packed(tuple(arg))]
            if type(arg) is list
            else arg
            for arg in args
        ]
    )


def unpacked(args: tuple | list, objects: dict[int, Any]) -> list:
    """What `_packed` arguments stand for: nothing else is a complex number."""
    return [
        objects[int(arg.real)]
        if type(arg) is complex
        else unpacked(arg, objects)
        if type(arg) is list
        else arg
        for arg in args
    ]
