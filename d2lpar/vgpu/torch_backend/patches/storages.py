"""`torch.UntypedStorage`: what would crash without memory of the device in C++ is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.types import Device

from ...device_naming import TYPE
from .. import runtime, torch_private


def replace_storages() -> None:
    """Refuse what would crash: torch has no allocator in C++ for memory of virtual devices."""
    torch_new: Callable[..., torch.UntypedStorage] = torch.UntypedStorage.__new__
    shared = inspect.getattr_static(torch.UntypedStorage, "_new_shared").__func__

    def new(
        cls: type[torch.UntypedStorage], *args: Any, device: Device = None, **kwargs: Any
    ) -> torch.UntypedStorage:
        if device is not None and torch.device(device).type == TYPE:
            raise NotImplementedError(
                f"there are no bare storages on {device}: make a tensor there, such as "
                "torch.empty(n, dtype=torch.uint8, device=device)"
            )
        return torch_new(cls, *args, device=device, **kwargs)

    def new_shared(
        cls: type[torch.UntypedStorage], size: int, *, device: str | int | torch.device = "cpu"
    ) -> torch.UntypedStorage:
        if torch.device(device).type == TYPE:
            runtime.current_runtime()  # which says what is wrong if this process was forked
            raise NotImplementedError(
                f"memory of {device} cannot be shared with another process, as a DataLoader's "
                "workers do: let the dataset return CPU tensors, and move batches with .to(device)"
            )
        return shared(cls, size, device=device)

    torch_private.replace(torch.UntypedStorage, "__new__", staticmethod(new))
    torch_private.replace(torch.UntypedStorage, "_new_shared", classmethod(new_shared))
