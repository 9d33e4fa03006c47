"""Locks, events, conditions and barriers between virtual processes, as in `multiprocessing`."""

from __future__ import annotations

from collections.abc import Callable
from threading import BrokenBarrierError

from ...ranks.launcher import current_process, host_time_s, not_before
from .shared import Shared


class VirtualSemaphore(Shared):
    """`multiprocessing.Semaphore`, `BoundedSemaphore` (with `most`) and `Lock` (of 1)."""

    name = "Semaphore"

    def __init__(
        self, run_children: Callable[[], None], value: int = 1, most: int | None = None
    ) -> None:
        super().__init__(run_children)
        self._value, self._most = value, most
        self._released_s = 0.0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one, waiting for it; whether it was there in time."""
        ready = self.wait_until(self._is_free, f"{self.name}.acquire", block=block, timeout=timeout)
        if ready:
            self._take()
            not_before(self._released_s)
        return ready

    def _is_free(self) -> bool:
        return self._value > 0

    def _take(self) -> None:
        self._value -= 1

    def release(self) -> None:
        """Give one back. ValueError for more than there may be."""
        if self._most is not None and self._value >= self._most:
            raise ValueError("semaphore or lock released too many times")
        self._value += 1
        self._released_s = host_time_s()

    def get_value(self) -> int:
        """How many are left."""
        return self._value

    def locked(self) -> bool:
        """Whether none is left."""
        return not self._value

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualLock(VirtualSemaphore):
    """`multiprocessing.Lock`."""

    name = "Lock"

    def __init__(self, run_children: Callable[[], None]) -> None:
        super().__init__(run_children, 1, 1)


class VirtualRLock(VirtualSemaphore):
    """`multiprocessing.RLock`: whoever holds it may take it again."""

    name = "RLock"

    def __init__(self, run_children: Callable[[], None]) -> None:
        super().__init__(run_children, 1)
        self._owner: object = None
        self._depth = 0

    def _is_free(self) -> bool:
        return not self._depth or self._owner is _myself()

    def _take(self) -> None:
        self._owner = _myself()
        self._depth += 1

    def release(self) -> None:
        """Give it back, as often as it was taken. AssertionError for a lock of another process."""
        if not self._depth or self._owner is not _myself():
            raise AssertionError("attempt to release recursive lock not owned by thread")
        self._depth -= 1
        self._released_s = host_time_s()


_PROGRAM = object()


def _myself() -> object:
    """The virtual process that runs; something else for the program itself."""
    return current_process() or _PROGRAM


class VirtualEvent(Shared):
    """`multiprocessing.Event`."""

    def __init__(self, run_children: Callable[[], None]) -> None:
        super().__init__(run_children)
        self._is_set = False
        self._set_s = 0.0

    def is_set(self) -> bool:
        """Whether it is set when others have gone on."""
        ready = self.wait_until(lambda: self._is_set, "Event.is_set", block=False)
        if ready:
            not_before(self._set_s)
        return ready

    def set(self) -> None:
        """Let those go on that wait for it."""
        if not self._is_set:
            self._is_set, self._set_s = True, host_time_s()

    def clear(self) -> None:
        """Let those wait that come from now on."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; whether it is."""
        ready = self.wait_until(lambda: self._is_set, "Event.wait", timeout=timeout)
        if ready:
            not_before(self._set_s)
        return ready


class VirtualCondition(Shared):
    """`multiprocessing.Condition`."""

    def __init__(
        self, run_children: Callable[[], None], lock: VirtualSemaphore | None = None
    ) -> None:
        super().__init__(run_children)
        self._lock = VirtualRLock(run_children) if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: list[list[float]] = []  # for each that waits: when it was woken, if it was

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back until somebody notifies, then take it again; whether somebody did."""
        woken: list[float] = []
        self._waiting.append(woken)
        self.release()
        try:
            ready = self.wait_until(lambda: bool(woken), "Condition.wait", timeout=timeout)
        finally:
            if woken in self._waiting:
                self._waiting = [other for other in self._waiting if other is not woken]
            self.acquire()
        if ready:
            not_before(woken[0])
        return ready

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `predicate()`; whether it came true."""
        result = predicate()
        while not result and self.wait(timeout):
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        """Wake `n` of those that wait, in the order in which they came."""
        for woken in self._waiting[:n]:
            woken.append(host_time_s())
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Wake all that wait."""
        self.notify(len(self._waiting))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualBarrier(Shared):
    """`multiprocessing.Barrier`: nobody goes on before `parties` have come."""

    def __init__(
        self,
        run_children: Callable[[], None],
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(run_children)
        self.parties, self._action, self._timeout = parties, action, timeout
        self.n_waiting = 0
        self.broken = False
        self._round = 0
        self._arrived_s = 0.0

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the others; the number of those that were there. BrokenBarrierError if one of
        them has given up."""
        self._check()
        number, this_round = self.n_waiting, self._round
        self.n_waiting += 1
        self._arrived_s = max(self._arrived_s, host_time_s())
        if self.n_waiting == self.parties:
            if self._action is not None:
                self._action()
            self.n_waiting, self._round = 0, self._round + 1
        else:
            limit = self._timeout if timeout is None else timeout
            over = lambda: self.broken or self._round > this_round  # noqa: E731
            if not self.wait_until(over, "Barrier.wait", timeout=limit):
                self.abort()
        self._check()
        not_before(self._arrived_s)
        return number

    def _check(self) -> None:
        if self.broken:
            raise BrokenBarrierError

    def abort(self) -> None:
        """Let all that wait, or come, fail."""
        self.broken = True

    def reset(self) -> None:
        """Begin anew; those that wait fail."""
        self.broken, self.n_waiting, self._round = False, 0, self._round + 1
