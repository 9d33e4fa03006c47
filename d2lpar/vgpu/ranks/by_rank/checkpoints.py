"""Distributed checkpoints that are written in the background: on virtual ranks, at once.

torch saves them in a thread beside the program's, where collectives go on. A rank has one thread,
and others wait for their turn; so what such a thread would do is done when it is asked for. It
takes the ranks no simulated time, as all work with files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from ..world.rank import here

Replace = Callable[[object, str, object], None]


class AtOnce:
    """An executor that does in the caller's thread, and at once, what it is given."""

    def submit(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> Future[object]:
        """A future that is done."""
        future: Future[object] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, **options: object) -> None:
        """Nothing: there is no thread."""


def _without_thread(theirs: Callable[..., None], name: str) -> Callable[..., None]:
    """The `__init__` of a class that keeps an executor (or None) under that name."""

    @functools.wraps(theirs)
    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        theirs(self, *args, **kwargs)
        executor = getattr(self, name)
        if executor is not None and getattr(here, "rank", None) is not None:
            executor.shutdown()
            setattr(self, name, AtOnce())

    return __init__


def _refuse_process(*args: object, **kwargs: object) -> None:
    raise NotImplementedError(
        "virtual ranks cannot save a checkpoint in another process: leave out "
        "async_checkpointer_type, or set it to AsyncCheckpointerType.THREAD"
    )


def replace_in(module: ModuleType, replace: Replace) -> None:
    """Let ranks save in their own thread; `replace` sets an attribute and notes how to undo it."""
    saver = getattr(module, "_ThreadBasedAsyncCheckpointExecutor", None)
    keeper = getattr(module, "DefaultStager", None)
    process = getattr(module, "_ProcessBasedAsyncCheckpointExecutor", None)
    name = module.__name__.rpartition(".")[2]
    if name == "_async_thread_executor" and saver is not None:
        replace(saver, "__init__", _without_thread(saver.__init__, "_executor"))
    if name == "_async_process_executor" and process is not None:
        replace(process, "__init__", _in_ranks(process.__init__, _refuse_process))
    if name == "staging" and keeper is not None:
        replace(keeper, "__init__", _without_thread(keeper.__init__, "_staging_executor"))


def _in_ranks(theirs: Callable[..., None], ours: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def choose(*args: object, **kwargs: object) -> None:
        (theirs if getattr(here, "rank", None) is None else ours)(*args, **kwargs)

    return choose


PACKAGE = "torch.distributed.checkpoint"
NAMES = ("_async_thread_executor", "_async_process_executor", "staging")
MODULES = tuple(f"{PACKAGE}.{name}" for name in NAMES)
