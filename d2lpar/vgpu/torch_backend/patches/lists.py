"""Tensors of lists whose numbers are on virtual devices: torch reads those in C++, and fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..tensors.tensor import VirtualTensor

_DATA = "data"  # what torch calls the list


def of_lists(factory: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
    """A function that makes a tensor of its argument `at`, with such numbers copied to the host."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        try:
            return factory(*args, **kwargs)
        except RuntimeError:
            data = args[at] if len(args) > at else kwargs.get(_DATA)
            if not isinstance(data, (list, tuple)):
                raise
            if len(args) > at:
                return factory(*args[:at], _on_host(data), *args[at + 1 :], **kwargs)
            return factory(*args, **{**kwargs, _DATA: _on_host(data)})

    return make


def _on_host(data: object) -> object:
    """Nested lists with copies on the host of the virtual tensors in them."""
    if isinstance(data, (list, tuple)):
        return [_on_host(value) for value in data]
    return data.detach().cpu() if isinstance(data, VirtualTensor) else data
