"""What belongs to torch.cuda and has a module of its own: NCCL, the profiler, ranges of NVTX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch.cuda.nccl
import torch.cuda.nvtx
import torch.cuda.profiler

from .patches import Patches
from .refusals import refusal

REFUSED = (
    (
        torch.cuda.nccl,
        ("all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", "version"),
        "use torch.cuda.comm, or d2lpar.collectives",
    ),
    (
        torch.cuda.profiler,
        ("init", "profile", "start", "stop"),
        "use `with d2lpar.record() as timeline:`",
    ),
)


def install(patches: Patches) -> None:
    for module, names, remedy in REFUSED:
        for name in names:
            if hasattr(module, name):
                patches.replace(module, name, refusal(f"{module.__name__}.{name}", remedy))
    patches.replace(torch.cuda.nccl, "is_available", lambda tensors: False)
    for name, function in Ranges().functions().items():
        if hasattr(torch.cuda.nvtx, name):
            patches.replace(torch.cuda.nvtx, name, function)


class Ranges:
    """`torch.cuda.nvtx`: ranges and marks are accepted, counted, and shown nowhere."""

    def __init__(self) -> None:
        self._depth = 0
        self._started = 0

    def functions(self) -> dict[str, Callable]:
        return {
            "range_push": self._push,
            "range_pop": self._pop,
            "range_start": self._start,
            "range_end": lambda range_id: None,
            "mark": lambda msg: None,
            "range": self._range,
        }

    def _push(self, msg: str) -> int:
        self._depth += 1
        return self._depth - 1

    def _pop(self) -> int:
        self._depth -= 1
        return self._depth

    def _start(self, msg: str) -> int:
        self._started += 1
        return self._started

    @contextlib.contextmanager
    def _range(self, msg: str, *args: object, **kwargs: object) -> Iterator[None]:
        self._push(msg)
        try:
            yield
        finally:
            self._pop()
