"""A rank's wire to the conductor loses nothing to handlers of signals, whatever they do there."""

import marshal
import pickle
import random
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import Pipe

import pytest

from d2lpar.vgpu.conductor.messages import PipeMessages
from d2lpar.vgpu.conductor.wire import ASK, NUDGE, POST, Wire

LONG = 300_000  # characters, more than a socket holds


class Conductor(threading.Thread):
    """Answers what it is asked with the question, and keeps what it is told."""

    def __init__(self, connection) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self.told = []

    def run(self):
        with suppress(EOFError, OSError):
            while True:
                for kind, *call in marshal.loads(self._connection.recv_bytes()):
                    if kind == POST:
                        self.told += call[2]
                    if kind == ASK:
                        self._answer(call[-1], call[2])
                    if kind == NUDGE:
                        self._answer(NUDGE, None)

    def _answer(self, number, value):
        self._connection.send_bytes(pickle.dumps((number, True, value, [])))


@pytest.fixture
def wired():
    ours, theirs = Pipe()
    conductor = Conductor(theirs)
    conductor.start()
    yield Wire(ours), conductor
    ours.close()
    conductor.join()
    theirs.close()


class Stop(BaseException):
    """What a handler raises."""


@pytest.fixture
def handler(wired):
    """Comes every half millisecond, and asks or raises, as does a program's."""
    rng = random.Random(0)
    wire, _ = wired

    def handle(*_):
        if rng.random() < 0.3:
            raise Stop
        word = rng.random()
        assert wire.ask(0, "echo", (word,)) == (word,)

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 5e-4)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no timer")
@pytest.mark.parametrize("text", ["", "x" * LONG], ids=["short", "long"])
def test_handlers_that_raise_or_ask_lose_nothing(wired, handler, text):
    wire, conductor = wired
    told, stops = 0, 0
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + 2 or stops <= 10:  # a busy machine gives few in that time
        assert time.monotonic() < begin_s + 60
        try:
            handler()
            for _ in range(50):
                wire.post(0, "tell", (told,))
                told += 1  # a handler may come before it
                assert wire.ask(0, "echo", (told, text)) == (told, text)
        except Stop:
            stops += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert wire.ask(0, "echo", ("last",)) == ("last",)
    assert conductor.told == sorted(conductor.told)
    # The last may be told although a handler came before it was counted.
    assert set(range(told)) <= set(conductor.told) <= set(range(told + 1))


def test_threads_share_a_wire(wired):
    wire, _ = wired
    right = []

    def ask(word):
        right.extend(wire.ask(0, "echo", (word, i)) == (word, i) for i in range(200))

    threads = [threading.Thread(target=ask, args=(word,)) for word in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 600
    assert all(right)


@pytest.fixture
def no_poll(monkeypatch):
    monkeypatch.delattr("select.poll")


def test_a_wire_of_a_system_without_poll(no_poll, wired):
    wire, conductor = wired
    assert isinstance(wire._messages, PipeMessages)
    wire.post(0, "tell", (1,))
    assert wire.ask(0, "echo", ("x" * LONG,)) == ("x" * LONG,)
    assert conductor.told == [1]


def test_a_closed_wire_writes_nowhere(wired):
    wire, _ = wired
    wire.close()
    with pytest.raises(OSError, match="closed"):
        wire.ask(0, "echo", ())
