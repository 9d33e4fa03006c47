"""What data loaders take: they run for real, and not on the simulated clock.

Their processor's time is measured where batches are put together, in the program's own process or
in workers that it forks.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.utils.data import get_worker_info

from ...torch_backend.private import torch_modules

# Not the program's own, which may yet say how it starts processes.
_context = multiprocessing.get_context(multiprocessing.get_all_start_methods()[0])
_now_s = time.thread_time  # before a program, or the emulation of its clock, replaces it


class Loading:
    """Processor seconds of all loaders, and the most workers that one of them had."""

    def __init__(self) -> None:
        # Anonymous memory, which forked workers have in common with this process.
        self._seconds, self._workers = (_context.Value(kind, 0) for kind in "di")

    @property
    def seconds(self) -> float:
        """Of the processor, over all loaders and workers."""
        return self._seconds.value

    @property
    def workers(self) -> int:
        """0 if batches were put together by the program itself."""
        return self._workers.value

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Measure the loaders of the block."""
        fetchers = torch_modules.data_fetchers()
        before = [fetcher.fetch for fetcher in fetchers]
        for fetcher, fetch in zip(fetchers, before, strict=True):
            fetcher.fetch = self._measuring(fetch)
        try:
            yield
        finally:
            for fetcher, fetch in zip(fetchers, before, strict=True):
                fetcher.fetch = fetch

    def _measuring(self, fetch: Callable[..., object]) -> Callable[..., object]:
        @wraps(fetch)
        def measured(*args: Any, **kwargs: Any) -> object:
            begin_s = _now_s()
            try:
                return fetch(*args, **kwargs)
            finally:
                self._add(_now_s() - begin_s)

        return measured

    def _add(self, seconds: float) -> None:
        with self._seconds.get_lock():
            self._seconds.value += seconds
        worker = get_worker_info()
        if worker is not None and worker.num_workers > self._workers.value:
            self._workers.value = worker.num_workers
