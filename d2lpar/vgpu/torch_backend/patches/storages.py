"""`torch.UntypedStorage`: torch has no allocator in C++ for memory of virtual devices.

So a bare storage there is that of a tensor, and what would crash is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.types import Device

from ...device_naming import TYPE, naming
from ...patching import FOR_GOOD
from ..machine import runtime
from ..tensors.virtual_storage import VirtualStorage, resize


def replace_storages() -> None:
    """Make storages of virtual devices here, and refuse to share them between processes."""
    torch_new: Callable[..., torch.UntypedStorage] = torch.UntypedStorage.__new__
    shared = inspect.getattr_static(torch.UntypedStorage, "_new_shared").__func__

    def new(
        cls: type[torch.UntypedStorage], *args: Any, device: Device = None, **kwargs: Any
    ) -> torch.UntypedStorage:
        meant = _virtual(device)
        if meant is not None:
            return _bare(meant, *args, **kwargs)
        if cls is VirtualStorage:  # `type(x.untyped_storage())(8)`: torch has one type for all
            cls = torch.UntypedStorage
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
        return shared(torch.UntypedStorage if cls is VirtualStorage else cls, size, device=device)

    torch_copy = torch.UntypedStorage.copy_

    def copy_(
        self: torch.UntypedStorage, source: Any, non_blocking: Any = None, **kwargs: Any
    ) -> torch.UntypedStorage:
        if not any(isinstance(each, VirtualStorage) for each in (self, source)):
            return torch_copy(self, source, non_blocking, **kwargs)
        _bytes_of(self).copy_(_bytes_of(source), non_blocking=bool(non_blocking))
        return self

    FOR_GOOD.set(torch.UntypedStorage, "copy_", copy_)
    FOR_GOOD.set(torch.UntypedStorage, "__new__", staticmethod(new))
    FOR_GOOD.set(torch.UntypedStorage, "resize_", resize)
    FOR_GOOD.set(torch.UntypedStorage, "_new_shared", classmethod(new_shared))
    torch_wrapped = torch.storage.TypedStorage._new_wrapped_storage

    def wrapped(
        self: torch.storage.TypedStorage, untyped_storage: torch.UntypedStorage
    ) -> torch.storage.TypedStorage:
        if isinstance(untyped_storage, VirtualStorage):  # torch wants its own type, and no other
            return torch.storage.TypedStorage(
                wrap_storage=untyped_storage, dtype=self.dtype, _internal=True
            )
        return torch_wrapped(self, untyped_storage)

    FOR_GOOD.set(torch.storage.TypedStorage, "_new_wrapped_storage", wrapped)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _virtual(device: Device) -> torch.device | None:
    """The virtual device that is meant; None for another kind."""
    if device is None or runtime.running() is None:
        return None
    meant = naming().parse(device)
    meant = torch.device(meant) if isinstance(meant, str) else meant
    return meant if isinstance(meant, torch.device) and meant.type == TYPE else None


def _bare(device: torch.device, content: int | Sequence[int] = 0) -> torch.UntypedStorage:
    """A storage of so many bytes, or of these."""
    kind: dict[str, Any] = {"dtype": torch.uint8, "device": device}
    if isinstance(content, int):
        return torch.empty(content, **kind).untyped_storage()
    return torch.tensor(list(content), **kind).untyped_storage()
