"""`multiprocessing.Pool`: tasks for virtual processes.

The workers run when the program waits for a result, all tasks that it has given them until then.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import TimeoutError as PoolTimeoutError
from multiprocessing import pool as theirs
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from typing import Any

import torch.multiprocessing

from ...patching import Patches
from ...races.user_code import is_user_frame
from .. import lazy_init
from .pool_workers import Board, Call, Chunk, Worker
from .processes import FORK, Children

TASKS_A_WORKER = 4  # `Pool.map` cuts its input into so many chunks a worker


class PoolResult:
    """What a pool will give for one call: `multiprocessing.pool.AsyncResult`."""

    def __init__(
        self,
        pool: VirtualPool,
        chunks: Sequence[Chunk],
        join: Callable[[list[object]], object],
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[Any], object] | None,
    ) -> None:
        self._pool, self.chunks, self._join = pool, chunks, join
        self._callback, self._error_callback = callback, error_callback
        self._value: object = None
        self._error: Exception | None = None
        self._is_ready = False

    @property
    def ended_s(self) -> float:
        """When the last of its tasks ended, in simulated seconds."""
        return max(chunk.ended_s for chunk in self.chunks)

    def get(self, timeout: float | None = None) -> Any:
        """The result, when the workers have run. Raises the first error of a task."""
        self.wait()
        if not self._is_ready:
            raise PoolTimeoutError("the pool was terminated before this task")
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None:
        """Let the workers run."""
        self._pool.run()

    def ready(self) -> bool:
        """Whether the workers have run: they do now if they have not."""
        self.wait()
        return self._is_ready

    def successful(self) -> bool:
        """Whether no task failed. ValueError if they have not run."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._error is None

    def finish(self) -> None:
        """Take what the workers have found, and tell who wanted to know."""
        try:
            self._value = self._join([v for chunk in self.chunks for v in chunk.results()])
        except Exception as error:
            self._error = error
        self._is_ready = True
        tell, told = (
            (self._callback, self._value)
            if self._error is None
            else (self._error_callback, self._error)
        )
        if tell is not None:
            tell(told)


class VirtualPool:
    """`multiprocessing.Pool` of the program's: `processes` virtual ones (default: as many as the
    host has processors)."""

    def __init__(
        self,
        children: Children,
        method: str,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[object] = (),
        maxtasksperchild: int | None = None,
        context: object = None,
    ) -> None:
        count = (os.cpu_count() or 1) if processes is None else processes
        if count < 1:
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and maxtasksperchild < 1:
            raise ValueError("maxtasksperchild must be a positive int or None")
        begin = _nothing if initializer is None else partial(initializer, *initargs)
        self._children, self._board = children, Board(children.run)
        self._new_worker = partial(Worker, children, self._board, method, begin)
        self._most = maxtasksperchild
        self._workers = [self._new_worker() for _ in range(count)]
        self._open: list[PoolResult] = []
        self._state = theirs.RUN

    # --- tasks --------------------------------------------------------------------------------

    def apply_async(
        self,
        func: Callable[..., object],
        args: Iterable[object] = (),
        kwds: Mapping[str, object] | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[Any], object] | None = None,
    ) -> PoolResult:
        """One call."""
        chunks = [Chunk(func, [(tuple(args), dict(kwds or {}))])]
        return self._submit(chunks, lambda values: values[0], callback, error_callback)

    def starmap_async(
        self,
        func: Callable[..., object],
        iterable: Iterable[Iterable[object]],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[Any], object] | None = None,
    ) -> PoolResult:
        """A call for each sequence of arguments."""
        calls: list[Call] = [(tuple(args), {}) for args in iterable]
        size = chunksize or -(-len(calls) // (TASKS_A_WORKER * len(self._workers))) or 1
        chunks = _cut(func, calls, size)
        return self._submit(chunks, lambda values: values, callback, error_callback)

    def map_async(
        self,
        func: Callable[..., object],
        iterable: Iterable[object],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[Any], object] | None = None,
    ) -> PoolResult:
        """A call for each argument."""
        calls = ((value,) for value in iterable)
        return self.starmap_async(func, calls, chunksize, callback, error_callback)

    def apply(
        self,
        func: Callable[..., object],
        args: Iterable[object] = (),
        kwds: Mapping[str, object] | None = None,
    ) -> Any:
        """What one call gives."""
        return self.apply_async(func, args, kwds).get()

    def map(
        self,
        func: Callable[..., object],
        iterable: Iterable[object],
        chunksize: int | None = None,
    ) -> Any:
        """What the calls give, in a list."""
        return self.map_async(func, iterable, chunksize).get()

    def starmap(
        self,
        func: Callable[..., object],
        iterable: Iterable[Iterable[object]],
        chunksize: int | None = None,
    ) -> Any:
        """What the calls give, in a list."""
        return self.starmap_async(func, iterable, chunksize).get()

    def imap(
        self, func: Callable[..., object], iterable: Iterable[object], chunksize: int = 1
    ) -> Iterator[object]:
        """What the calls give, one after the other."""
        return self._found(self._stream(func, iterable, chunksize), in_order=True)

    def imap_unordered(
        self, func: Callable[..., object], iterable: Iterable[object], chunksize: int = 1
    ) -> Iterator[object]:
        """What the calls give, in the order in which they ended."""
        return self._found(self._stream(func, iterable, chunksize), in_order=False)

    def _stream(
        self, func: Callable[..., object], iterable: Iterable[object], size: int
    ) -> list[Chunk]:
        if size < 1:
            raise ValueError(f"Chunksize must be 1+, not {size:n}")
        chunks = _cut(func, [((value,), {}) for value in iterable], size)
        self._submit(chunks, lambda values: values)
        return chunks

    def _found(self, chunks: Sequence[Chunk], *, in_order: bool) -> Iterator[object]:
        self.run()
        for chunk in chunks if in_order else sorted(chunks, key=lambda each: each.ended_s):
            yield from chunk.results()

    def _submit(
        self,
        chunks: Sequence[Chunk],
        join: Callable[[list[object]], object],
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[Any], object] | None = None,
    ) -> PoolResult:
        if self._state != theirs.RUN:
            raise ValueError("Pool not running")
        self._board.chunks.extend(chunks)
        result = PoolResult(self, chunks, join, callback, error_callback)
        self._open.append(result)
        return result

    # --- workers ------------------------------------------------------------------------------

    def run(self) -> None:
        """Let the workers do all tasks that wait. RuntimeError if one of them ends before."""
        while self._board.chunks:
            self._board.begin(self._workers, self._most)
            for worker in self._workers:
                self._children.start(worker)
            self._children.run()
            for worker in self._workers:
                if worker.error is not None:
                    worker.error.add_note(f"raised by {worker.name} of a pool")
                    raise worker.error
            self._workers = [
                w if w.done != self._most else self._new_worker() for w in self._workers
            ]
        done, self._open = self._open, []
        for result in done:
            result.finish()

    def forget(self, result: PoolResult) -> None:
        """Do not do the tasks of a result that wait: nobody wants it any more."""
        self._open.remove(result)
        for chunk in result.chunks:
            self._board.chunks.remove(chunk)

    def close(self) -> None:
        """Take no more tasks."""
        if self._state == theirs.RUN:
            self._state = theirs.CLOSE

    def terminate(self) -> None:
        """Forget the tasks that wait, and take no more."""
        self._state = theirs.TERMINATE
        self._board.chunks.clear()
        self._open.clear()
        self._workers.clear()

    def join(self) -> None:
        """Let the workers do what they were given. ValueError before `close` or `terminate`."""
        if self._state == theirs.RUN:
            raise ValueError("Pool is still running")
        self.run()
        self._workers.clear()

    def __enter__(self) -> VirtualPool:
        if self._state != theirs.RUN:
            raise ValueError("Pool not running")
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()


def _nothing() -> None:
    """What a worker begins with, if the program does not say."""


def _cut(func: Callable[..., object], calls: Sequence[Call], size: int) -> list[Chunk]:
    return [Chunk(func, calls[i : i + size]) for i in range(0, len(calls), size)]


def install(children: Children, patches: Patches) -> None:
    """Let pools of the program have virtual workers."""
    context = multiprocessing.context.BaseContext
    owners: tuple[Any, ...] = (context, multiprocessing, torch.multiprocessing)
    for place in owners:
        patches.replace(place, "Pool", _making(children, place.Pool))
    patches.set(theirs.Pool, "__init__", _refusing(theirs.Pool.__init__))


def _making(children: Children, of_library: Callable[..., object]) -> Callable[..., object]:
    """What makes pools: ours for the program, real ones for libraries."""

    def make(*args: Any, **kwargs: Any) -> object:
        if not is_user_frame(_getframe(2)):
            return of_library(*args, **kwargs)
        by_context = bool(args) and isinstance(args[0], multiprocessing.context.BaseContext)
        context = args[0] if by_context else multiprocessing
        method = context.get_start_method() or FORK
        return VirtualPool(children, method, *args[by_context:], **kwargs)

    return make


def _refusing(of_library: Callable[..., None]) -> Callable[..., None]:
    """A pool made by its class has real processes, which have no virtual GPUs."""

    def __init__(self: theirs.Pool, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        by_user = is_user_frame(_getframe(1))
        if by_user and lazy_init.emulated_count() and not isinstance(self, theirs.ThreadPool):
            vars(self)["_state"] = theirs.CLOSE  # Pool.__del__ asks for it
            raise NotImplementedError(
                f"{type(self).__module__}.{type(self).__name__} is not emulated: make the pool "
                "with torch.multiprocessing.Pool(…), or with multiprocessing.Pool(…)"
            )
        of_library(self, *args, **kwargs)

    return __init__
