"""`concurrent.futures.ProcessPoolExecutor`: its workers are virtual processes, as those of a pool.

They run when the program asks for a result, all calls that it has submitted until then; these end
in the order of simulated time.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from multiprocessing.context import BaseContext
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from typing import Any

from ...patching import Patches
from ...races.user_code import is_user_frame
from .. import lazy_init
from .pools import PoolResult, VirtualPool
from .processes import FORK, SPAWN, Children

_numbers = count()


@dataclass
class _Exit:
    """What a call gives that has called `sys.exit`: executors, unlike pools, go on after it."""

    end: SystemExit


def _call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    try:
        return function(*args, **kwargs)
    except SystemExit as end:
        return _Exit(end)


class PoolFuture(Future):
    """What a call gives that an executor was handed. Whoever asks lets the workers run."""

    def __init__(self, executor: VirtualExecutor) -> None:
        super().__init__()
        self._executor, self.number = executor, next(_numbers)
        self.of_pool: PoolResult | None = None  # unless the call could not be sent

    @property
    def ended_s(self) -> float:
        """When the call ended, in simulated seconds; 0 for one that no worker was sent."""
        return 0.0 if self.of_pool is None else self.of_pool.ended_s

    def take(self, value: object) -> None:
        """What a worker has sent back."""
        if isinstance(value, _Exit):
            self.set_exception(value.end)
        else:
            self.set_result(value)

    def result(self, timeout: float | None = None) -> Any:
        """What the call has given. Raises what it has raised."""
        self._executor.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call has raised, if it has."""
        self._executor.run()
        return super().exception(timeout)

    def done(self) -> bool:
        """True: the workers run now if they have not."""
        self._executor.run()
        return super().done()

    def cancel(self) -> bool:
        """Whether the call is not made: it is if the workers have run."""
        return super().cancel() and self._executor.forget(self)

    def add_done_callback(self, fn: Callable[[Future], object]) -> None:
        """Call `fn` when the workers have run: at once if a library asks, such as an event loop,
        which would wait for it."""
        super().add_done_callback(fn)
        if not is_user_frame(_getframe(1)):
            self._executor.run()


class VirtualExecutor(ProcessPoolExecutor):
    """`ProcessPoolExecutor` of the program's: its workers are those of a virtual pool."""

    def __init__(
        self,
        children: Children,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[object] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        _check(max_workers, initializer, max_tasks_per_child)
        method = SPAWN if mp_context is None and max_tasks_per_child else _method_of(mp_context)
        if method == FORK and max_tasks_per_child:
            raise ValueError(
                "max_tasks_per_child is incompatible with the 'fork' multiprocessing start method; "
                "supply a different mp_context."
            )
        self._pool = VirtualPool(
            children, method, max_workers, initializer, initargs, max_tasks_per_child
        )
        self._open: list[PoolFuture] = []
        self._is_broken = self._is_shut_down = False

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> PoolFuture:
        """The future of one call. BrokenProcessPool if a worker has ended by an error."""
        if self._is_broken:
            raise BrokenProcessPool("a worker has ended by an error: make another executor")
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = PoolFuture(self)
        self._open.append(future)
        try:
            tell = future.take, future.set_exception
            future.of_pool = self._pool.apply_async(partial(_call, fn), args, kwargs, *tell)
        except Exception as error:  # it cannot be pickled
            self._open.remove(future)
            future.set_exception(error)
        return future

    def map(
        self,
        fn: Callable[..., object],
        *iterables: Iterable[object],
        timeout: float | None = None,
        chunksize: int = 1,
        **others: Any,
    ) -> Iterator[Any]:
        """What the calls give, in their order, `chunksize` of them by one worker."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        calls = zip(*iterables, strict=False)
        parts = iter(lambda: list(islice(calls, chunksize)), [])
        each = partial(_call_each, fn)
        return chain.from_iterable(super(ProcessPoolExecutor, self).map(each, parts, **others))

    def run(self) -> None:
        """Let the workers make all calls that wait. If one ends before, all futures say so."""
        try:
            self._pool.run()
        except Exception as error:
            self._is_broken = True
            self._pool.terminate()
            for future in self._open:
                future.set_exception(_broken_by(error))
        self._open = [future for future in self._open if not Future.done(future)]

    def forget(self, future: PoolFuture) -> bool:
        """Do not make a call that was cancelled; True."""
        if future in self._open:
            self._open.remove(future)
            if future.of_pool is not None:
                self._pool.forget(future.of_pool)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; those that wait are made, or cancelled."""
        self._is_shut_down = True
        if cancel_futures:
            for future in list(self._open):
                future.cancel()
        self.run()


def _check(max_workers: int | None, initializer: object, max_tasks_per_child: int | None) -> None:
    """ValueError or TypeError, in the words of the library."""
    if max_workers is not None and max_workers <= 0:
        raise ValueError("max_workers must be greater than 0")
    if initializer is not None and not callable(initializer):
        raise TypeError("initializer must be a callable")
    if max_tasks_per_child is not None and not isinstance(max_tasks_per_child, int):
        raise TypeError("max_tasks_per_child must be an integer")
    if max_tasks_per_child is not None and max_tasks_per_child <= 0:
        raise ValueError("max_tasks_per_child must be >= 1")


def _method_of(context: BaseContext | None) -> str:
    return (multiprocessing if context is None else context).get_start_method() or FORK


def _call_each(function: Callable[..., object], calls: Iterable[tuple]) -> list[object]:
    return [function(*args) for args in calls]


def _broken_by(error: Exception) -> BrokenProcessPool:
    broken = BrokenProcessPool(
        "A process in the process pool was terminated abruptly while the future was running or "
        f"pending: {type(error).__name__}: {error}"
    )
    broken.__cause__ = error
    return broken


# --- what waits for several -----------------------------------------------------------------------


def _run_those_of(futures: Iterable[Future]) -> list[PoolFuture]:
    """Let the workers of virtual executors run; their futures, in the order in which they ended."""
    ours = [future for future in futures if isinstance(future, PoolFuture)]
    return sorted((f for f in ours if f.done()), key=lambda future: (future.ended_s, future.number))


def _as_completed(theirs: Callable) -> Callable:
    def as_completed(fs: Iterable[Future], timeout: float | None = None) -> Iterator[Future]:
        futures = set(fs)
        ours = _run_those_of(futures)
        yield from ours
        yield from theirs(futures.difference(ours), timeout)

    return as_completed


def _wait(theirs: Callable) -> Callable:
    def wait(fs: Iterable[Future], *args: Any, **kwargs: Any) -> object:
        futures = list(fs)
        _run_those_of(futures)
        return theirs(futures, *args, **kwargs)

    return wait


def install(children: Children, patches: Patches) -> None:
    """Let executors of the program have virtual workers."""
    theirs = ProcessPoolExecutor.__init__
    patches.set(ProcessPoolExecutor, "__init__", _making(children, theirs))
    for name, ours in (("as_completed", _as_completed), ("wait", _wait)):
        patches.replace(concurrent.futures, name, ours(getattr(concurrent.futures, name)))


def _making(children: Children, of_library: Callable[..., None]) -> Callable[..., None]:
    """What begins an executor: ours for the program, also of a class of its own; else theirs."""

    def __init__(self: ProcessPoolExecutor, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if not (is_user_frame(_getframe(1)) and lazy_init.emulated_count()):
            of_library(self, *args, **kwargs)
            return
        kind = type(self)
        is_plain = kind is ProcessPoolExecutor
        self.__class__ = (
            VirtualExecutor if is_plain else type(kind.__name__, (kind, VirtualExecutor), {})
        )
        assert isinstance(self, VirtualExecutor), "it has just become one"
        VirtualExecutor.__init__(self, children, *args, **kwargs)

    return __init__
