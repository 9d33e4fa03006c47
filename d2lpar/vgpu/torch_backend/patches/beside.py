"""Tensors that are made beside another one: on its device, whichever the current one is."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ...device_naming import TYPE
from ...patching import FOR_GOOD
from ..tensors.tensor import VirtualTensor
from .lists import of_lists

# They read data, and torch's C++ guard, which then makes the tensor's device the current one,
# does not know the devices of a Python backend: the data came to device 0.
_READERS = ("new", "new_tensor")
_SHARED = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)


def replace_readers() -> None:
    """Let `x.new_tensor(data)` and `x.new(data)` make tensors on the device of `x`."""
    for name in _READERS:
        theirs = getattr(torch.Tensor, name)
        FOR_GOOD.set(torch.Tensor, name, of_lists(_beside(theirs), at=1))


def _beside(theirs: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    shared = _SHARED if theirs.__name__ == "new" else ()  # `new` makes another name for these

    @functools.wraps(theirs)
    def make(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        asks = kwargs.get("device") is None and not isinstance(next(iter(args), None), shared)
        if asks and isinstance(self, VirtualTensor):
            kwargs["device"] = torch.device(TYPE, self.vgpu_index)
            if not args and theirs.__name__ == "new":
                args = (0,)  # torch reads no device where it is given no size
        return theirs(self, *args, **kwargs)

    return make
