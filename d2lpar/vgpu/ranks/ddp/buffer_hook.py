"""Buffers of DDP that a hook of the program's exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..private.c10d import buffers_exchanged


class BufferHook:
    """`hook(state, named_buffers)`, before or after the forward pass.

    Futures that it returns are waited for at once: the device's stream waits, and its host does
    not. torch waits when the backward pass has ended.
    """

    def __init__(self, state: object, hook: Callable[..., object], location: object = None) -> None:
        if not callable(hook):
            raise AssertionError(f"hook must be callable, got {type(hook).__name__}")
        self._state, self._hook = state, hook
        self._is_before = getattr(location, "name", "POST_FORWARD") == "PRE_FORWARD"

    def before_forward(self, buffers: dict[str, Any]) -> None:
        """Call it if it is to be called then."""
        if self._is_before:
            self._call(buffers)

    def after_forward(self, buffers: dict[str, Any]) -> None:
        """Call it if it is to be called then."""
        if not self._is_before:
            self._call(buffers)

    def _call(self, buffers: dict[str, Any]) -> None:
        with torch.no_grad(), buffers_exchanged(buffers.values()):
            futures: Any = self._hook(self._state, buffers)
            for future in futures if isinstance(futures, Iterable) else ():
                future.wait()
