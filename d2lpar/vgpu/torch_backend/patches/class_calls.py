"""Methods that read values or addresses, called through the class: `map(torch.Tensor.tolist, xs)`.

A call of the tensor finds the virtual tensor's method by itself, and costs what it did. One through
the class got what C++ knows of the wrapper: an error, or the address 0, the same for all. So torch
answers first, and who has a virtual tensor is asked where it had no answer: of tensors of the host,
to look at their class first would take longer than many a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...patching import FOR_GOOD
from ..tensors.tensor import VirtualTensor


def replace_methods() -> None:
    """Let torch.Tensor's methods be those of virtual tensors for these."""
    for name, choose in (("tolist", _unless_refused), ("numpy", _unless_refused)):
        theirs, ours = getattr(torch.Tensor, name), getattr(VirtualTensor, name)
        FOR_GOOD.set(torch.Tensor, name, choose(theirs, ours))
    theirs, ours = torch.Tensor.data_ptr, VirtualTensor.data_ptr
    FOR_GOOD.set(torch.Tensor, "data_ptr", _unless_nowhere(theirs, ours))


def _unless_refused(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def method(self: torch.Tensor, **options: bool) -> Any:
        try:
            return theirs(self, **options)
        except RuntimeError:
            if isinstance(self, VirtualTensor):
                return ours(self, **options)
            raise

    return method


def _unless_nowhere(
    theirs: Callable[[torch.Tensor], int], ours: Callable[[VirtualTensor], int]
) -> Callable[[torch.Tensor], int]:
    @functools.wraps(theirs)
    def method(self: torch.Tensor) -> int:
        address = theirs(self)
        if not address and isinstance(self, VirtualTensor):
            return ours(self)
        return address

    return method
