"""Cooperative scheduling: of several threads that stand for processes, one runs at a time.

A rank runs until it needs something of another one. Then it is the turn of the lowest rank that can
go on; so every run takes the same way, whatever the operating system does with the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...races.call_sites import CallSite, Mark, call_site_of, mark

Words = str | Callable[[], str]  # what is waited for, when it begins or when somebody asks


class Ended(BaseException):
    """Unwinds the thread of a rank when another one has failed; nobody sees it."""


@dataclass
class _Wait:
    """What a rank waits for; a `polite` one goes on only if no other can, and so does one that is
    `called` while it waits.

    One that `expires` (at that time) goes on when nobody can: `report` then says who waits where.
    """

    ready: Callable[[], bool]
    text: Words
    polite: bool = False
    called: Callable[[], bool] = lambda: False
    place: Mark | CallSite | None = None
    expires_s: float | None = None
    report: str = ""


def _described(wait: _Wait) -> str:
    where = "" if wait.place is None else f", at {call_site_of(wait.place)}"
    text = wait.text if isinstance(wait.text, str) else wait.text()
    return f"waits in {text}{where}"


class RankScheduler:
    """Lets `count` threads run one at a time; `lock` is what the running one may hold.

    `leave(rank)` and `enter(rank)` are called when the turn goes from one rank to another.
    """

    def __init__(
        self,
        count: int,
        lock: threading.RLock,
        leave: Callable[[int], None],
        enter: Callable[[int], None],
    ) -> None:
        self.error: RuntimeError | None = None
        self.ended = False
        self.abandoned = False
        self.holder: int | None = None
        self._count = count
        self._lock = lock
        self._leave, self._enter = leave, enter
        # What else is known of a hang, given the ranks that have returned.
        self.explain: Callable[[Sequence[int]], list[str]] = lambda returned: []
        # Whether something gives way when no rank can go on, given those that have returned.
        self.gives_way: Callable[[Sequence[int]], bool] = lambda returned: False
        self._calls = [threading.Condition(lock) for _ in range(count)]
        self._waits = {rank: _Wait(lambda: True, "its first turn") for rank in range(count)}

    def start(self) -> None:
        """Give the first turn to rank 0."""
        with self._lock:
            self._pass_on(self._count - 1)
            self._call_holder()

    def begin(self, rank: int) -> None:
        """Wait for the first turn. Raises Ended if there will be none."""
        with self._lock:
            self._take(rank)

    def wait(
        self,
        rank: int,
        ready: Callable[[], bool],
        text: Words,
        *,
        polite: bool = False,
        expires_s: float | None = None,
        place: CallSite | None = None,
        called: Callable[[], bool] = lambda: False,
    ) -> str:
        """Let others run until `ready()`, or `called()`; `text` says what this rank waits for, at a
        `place` (by default, where its thread is).

        Returns "", or who waits where if the wait has expired: when nobody could go on, it was the
        first to. Raises Ended if another rank fails meanwhile, or nobody can go on.
        """
        mine = _Wait(ready, text, polite, called, place or mark(), expires_s)
        self._wait(rank, mine)
        return mine.report

    def _wait(self, rank: int, mine: _Wait) -> None:
        with self._lock:
            if self.abandoned:
                raise Ended
            self._waits[rank] = mine
            self._pass_on(rank)
            if self.holder == rank and not self.ended:
                del self._waits[rank]
                return
            self._leave(rank)
            self._call_holder()
            self._take(rank)

    def finish(self, rank: int) -> None:
        """Give the turn away for good."""
        with self._lock:
            if self.abandoned:
                return
            self._leave(rank)
            if self._waits and not self.ended:
                self._pass_on(rank)
                self._call_holder()

    def end(self) -> None:
        """Let all ranks end: those that wait, at once."""
        with self._lock:
            self.ended = True
            for call in self._calls:
                call.notify_all()

    def abandon(self, *, leave: bool) -> None:
        """Go on without threads that do not end: from now on, no turn goes from one to another.

        With `leave`, the one that has the turn is left for it.
        """
        with self._lock:
            self.abandoned = True
            if leave and self.holder is not None:
                self._leave(self.holder)

    def _take(self, rank: int) -> None:
        while self.holder != rank and not self.ended:
            self._calls[rank].wait()  # gives up the lock, however often this thread holds it
        del self._waits[rank]
        if self.ended:
            raise Ended
        self._enter(rank)

    def _pass_on(self, rank: int) -> None:
        """Choose who goes on: the lowest; of the polite, the next after `rank`."""
        after = [(rank + i) % self._count for i in range(1, self._count + 1)]
        while True:
            for polite, order in ((False, range(self._count)), (True, after)):
                for other in order:
                    wait = self._waits.get(other)
                    if wait is None:
                        continue
                    is_ready = wait.polite == polite and wait.ready()
                    if is_ready or (polite and wait.called()):
                        self.holder = other
                        return
            if not self.gives_way(self._returned()):
                break
        if not self._let_one_expire():
            self.fail(RuntimeError(self._deadlock()))

    def fail(self, error: RuntimeError) -> None:
        """Let all ranks end, with an error that none of them can catch."""
        self.error = error
        self.end()

    def _returned(self) -> list[int]:
        return [rank for rank in range(self._count) if rank not in self._waits]

    def _let_one_expire(self) -> bool:
        """Let the first go on whose wait expires; whether there is one."""
        limits = [(w.expires_s, rank) for rank, w in self._waits.items() if w.expires_s is not None]
        if not limits:
            return False
        _, first = min(limits)
        self._waits[first].report = self._deadlock()
        self.holder = first
        return True

    def _call_holder(self) -> None:
        """Wake the one whose turn it is. The last thing before this thread waits, as the other one
        would only wait for this: for the lock, and for the interpreter's."""
        if self.holder is not None and not self.ended:
            self._calls[self.holder].notify()

    def _deadlock(self) -> str:
        lines = ["no rank can go on: each waits for another, or for one that has returned"]
        for rank in range(self._count):
            wait = self._waits.get(rank)
            lines.append(f"  rank {rank} " + (_described(wait) if wait else "has returned"))
        lines += self.explain(self._returned())
        return "\n".join(lines)
