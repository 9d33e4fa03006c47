"""A function mode: it sees every call of torch's API in its thread, whatever name it goes by.

It does not see the calls that torch's own Python functions make inside, nor those of a backward
pass; for these the functions that make or move tensors are replaced, too: see `tensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from threading import get_ident
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..torch_backend.private import torch_modes
from ..torch_backend.private.torch_operators import Operator
from .device_translation import CUDA, translate, translated
from .torch_cuda.default_generators import check_generator


class CudaMode(TorchFunctionMode):
    """Translates devices on the way into torch, and the messages of errors on the way out."""

    sees_calls_only = True  # see `torch_tensors.get_grad`

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False
        self._threads: set[int] = set()  # those that have entered it, and perhaps never leave it

    def __enter__(self) -> CudaMode:
        for other in torch_modes.function_modes():
            if isinstance(other, CudaMode) and other.is_over:  # left behind in this thread
                torch_modes.leave_function_mode(other)
        self._threads.add(get_ident())
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if get_ident() in self._threads:  # the garbage collector ends a block in any thread
            self._threads.remove(get_ident())
            torch_modes.leave_function_mode(self)

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if self.is_over:
            return func(*args, **(kwargs or {}))
        if func is torch.device:
            return _make_device(*args, **(kwargs or {}))
        if kwargs and "device" in kwargs:
            # An operator is called through a function of torch's.
            kwargs = translated(kwargs, _getframe(2 if isinstance(func, Operator) else 1))
        if kwargs and kwargs.get("generator") is not None:
            check_generator(args, kwargs)
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            translate(error)
            raise


def _make_device(*args: Any, **kwargs: Any) -> torch.device:
    """`torch.device(1)` means the accelerator, which torch calls by its own name."""
    device = torch.device(*args, **kwargs)
    return torch.device(CUDA, device.index) if args and isinstance(args[0], int) else device
