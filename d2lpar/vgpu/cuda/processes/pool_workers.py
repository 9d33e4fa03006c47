"""The workers of a pool: virtual processes that take tasks as they get free.

They run when the program waits for a result. Between two such lives a worker keeps what a process
keeps: its modules' variables, its random numbers, its current device. The worker whose simulated
time is the earliest takes the next task.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.pool import (  # type: ignore[attr-defined]
    MaybeEncodingError,
    RemoteTraceback,
)
from types import ModuleType
from typing import Any

from ...ranks.launcher import ProcessStart, wait_in_turn
from ...ranks.state.process_state import OwnState, ProcessState
from ...torch_backend.machine.runtime import current_runtime
from .child_tracebacks import text_of
from .processes import Child, Children
from .shared import Parcel, Shared

Call = tuple[tuple, dict[str, object]]  # its arguments, by place and by name


class Chunk:
    """Calls of one function, which a worker makes one after the other."""

    def __init__(self, function: Callable[..., object], calls: Sequence[Call]) -> None:
        self._packed = Parcel((function, list(calls)))
        self.count = len(calls)
        self.found: list[Parcel] = []
        self.error: Parcel | None = None
        self.ended_s = 0.0

    def run(self) -> None:
        """Make the calls, on a worker; the first error ends it."""
        packed: Any = self._packed.open()
        function, calls = packed
        try:
            for args, kwargs in calls:
                self.found.append(_result(function(*args, **kwargs)))
        except Exception as error:
            self.error = _packed_error(error)
        self.ended_s = current_runtime().now_s()

    def results(self) -> list[object]:
        """What the calls gave. Raises the error of the first that failed."""
        if self.error is not None:
            packed: Any = self.error.open()
            error, text = packed
            raise error from RemoteTraceback(text)
        return [parcel.open() for parcel in self.found]


def _result(value: object) -> Parcel:
    try:
        return Parcel(value)
    except Exception as error:
        raise MaybeEncodingError(error, value) from error


def _packed_error(error: Exception) -> Parcel:
    text = text_of(error)
    try:
        return Parcel((error, text))
    except Exception as unpickled:
        return Parcel((MaybeEncodingError(unpickled, error), text))


class Board(Shared):
    """The tasks that wait for a worker, and the time of each worker that is free."""

    def __init__(self, run_children: Callable[[], None]) -> None:
        super().__init__(run_children)
        self.chunks: deque[Chunk] = deque()
        self._free_s: dict[Worker, float] = {}
        self._most: int | None = None

    def begin(self, workers: Iterable[Worker], most: int | None) -> None:
        """Let these workers begin, all free now; none does more than `most` tasks."""
        self._free_s = dict.fromkeys(workers, current_runtime().now_s())
        self._most = most

    def take(self, worker: Worker) -> Chunk | None:
        """The next task, when no other worker is free earlier; None if it has to end."""
        if worker.done == self._most:
            return None
        self._free_s[worker] = current_runtime().now_s()
        wait_in_turn(lambda: self._is_first(worker), "Pool, for its turn to take a task", True)
        del self._free_s[worker]
        return self.chunks.popleft() if self.chunks else None

    def _is_first(self, worker: Worker) -> bool:
        return worker is min(self._free_s, key=self._free_s.__getitem__)


class Worker(Child):
    """A worker: it lives whenever there are tasks, and has in each life what it had before."""

    def __init__(
        self, children: Children, board: Board, method: str, begin: Callable[[], object]
    ) -> None:
        process = multiprocessing.get_context(method).Process()  # type: ignore[attr-defined]
        process.name = process.name.replace("Process", "PoolWorker")
        super().__init__(children, process.name, begin, method, process)
        self.done = 0
        self._board = board
        self._has_lived, self._current = False, 0
        self._states: Sequence[OwnState] = ()
        self._process: list[OwnState] = []
        super().pack()

    def pack(self) -> None:
        """It was, when the pool was made."""
        self.returncode = None

    def start_of(self, devices: Sequence[int], *, own_modules: bool) -> ProcessStart:
        """How its rank begins: as it has ended before."""
        if self._has_lived:
            states = [*self._states, *self._process]
            return ProcessStart(self.name, self._current, states=states)
        start = super().start_of(devices, own_modules=own_modules)
        self._states = start.states
        return start

    def live(self, main: ModuleType | None) -> None:
        """A life, in its rank's thread."""
        if not self._has_lived:
            super().live(main)
        self._has_lived = True
        try:
            self._serve()
        except SystemExit as end:
            self.error = RuntimeError(f"{self.name} called sys.exit({end.code!r})")
            raise self.error from end
        rt = current_runtime()
        self._current, self._process = rt.current_device, [ProcessState(rt)]

    def _serve(self) -> None:
        while (chunk := self._board.take(self)) is not None:
            chunk.run()
            self.done += 1
