"""Trials of automatic parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import machines
from ..vgpu import emulate_cuda, hazards, now_s, record, simulate
from .evidence import gantt_of
from .plain import seen

QUEUED, PRODUCTS, SIZE = 50, 20, 2000
BATCHES = 24
RESULTS, LARGE = 8, 4000


@contextmanager
def one_gpu(*, with_values: bool = False) -> Iterator[torch.device]:
    """A GPU for programs written for CUDA, with a clock of its own."""
    with (
        simulate(machines.DEFAULT, 1, with_values=with_values),
        emulate_cuda(1, verbose=False) as (device,),
    ):
        yield device


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Simulated seconds that a call takes, with all that it queues."""
    start_s = now_s(device)
    work()
    return now_s(device) - start_s


def timed(answer: Callable) -> dict[str, Any]:
    """Work to be timed, on a GPU that has other work."""
    with one_gpu() as device:
        x = torch.empty(SIZE, SIZE, device=device)
        calls = 0

        def work() -> None:
            nonlocal calls
            calls += 1
            for _ in range(PRODUCTS):
                x.mm(x)

        work()  # what the first call takes besides
        for _ in range(QUEUED):
            x.mm(x)  # queued earlier: not part of what is timed
        calls = 0
        return {"got": seen(answer(work, device)), "calls": calls}


def host_batches() -> list[torch.Tensor]:
    """Small ones, whose values are looked at."""
    generator = torch.Generator().manual_seed(5)
    return [torch.rand(8, 8, generator=generator) for _ in range(5)]


def product_and_one(X: torch.Tensor) -> torch.Tensor:
    """The work on those."""
    return X @ X + 1


def run_and_copied(answer: Callable) -> dict[str, Any]:
    """Small results in pinned buffers, after the call."""
    with one_gpu(with_values=True) as device, hazards() as found:
        x = host_batches()[0].to(device)
        buffers = [torch.zeros(8, 8).pin_memory() for _ in range(5)]
        torch.cuda.synchronize()
        answer(x, list(buffers))
        found_there = [seen(buffer.clone()) for buffer in buffers]
        return {"buffers": found_there, "hazards": [str(hazard) for hazard in found[:1]]}


def run_and_copy_times(answer: Callable) -> dict[str, Any]:
    """Seconds of large products and of copies that go under them, and of either alone."""
    with one_gpu() as device, hazards():  # the values were checked for small ones
        x = torch.empty(LARGE, LARGE, device=device)
        buffers = [torch.empty(LARGE, LARGE, pin_memory=True) for _ in range(RESULTS)]
        products_s = seconds_of(lambda: [x.mm(x) for _ in buffers], device)
        copies_s = seconds_of(
            lambda: [buffer.copy_(x, non_blocking=True) for buffer in buffers], device
        )
        with record() as timeline:
            took_s = seconds_of(lambda: answer(x, list(buffers)), device)
        return {
            "seconds": took_s,
            "products_s": products_s,
            "copies_s": copies_s,
            "picture": gantt_of(timeline),
        }


def prefetched(answer: Callable) -> dict[str, Any]:
    """Batches with values."""
    with one_gpu(with_values=True) as device, hazards() as found:
        got = answer([X.pin_memory() for X in host_batches()], product_and_one, device)
        return {
            "got": seen(got),
            "device": str(device),
            "hazards": [str(hazard) for hazard in found[:1]],
        }


def prefetch_times(answer: Callable, size: int, products: int) -> dict[str, Any]:
    """Many large batches, of which the clock alone is looked at."""
    worked = 0

    def work(X: torch.Tensor) -> torch.Tensor:
        nonlocal worked
        worked += 1
        return work_of(X, products)

    with one_gpu() as device, hazards():  # the values were checked for these
        batches = [torch.empty(size, size, pin_memory=True) for _ in range(BATCHES)]
        took_s = seconds_of(lambda: answer(batches, work, device), device)
        return {"worked": worked, "seconds": took_s}


def work_of(X: torch.Tensor, products: int) -> torch.Tensor:
    """So many products, one after the other."""
    for _ in range(products):
        X = X @ X
    return X
