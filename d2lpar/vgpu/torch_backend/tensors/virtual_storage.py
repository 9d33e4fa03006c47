"""The storage of a virtual tensor: that of its values, which takes and frees memory of the device.

Sharded data parallelism frees a parameter while autograd still knows it, by `storage.resize_(0)`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ...device_naming import device, naming
from ...memory.caching_allocator import Allocation
from ..machine.runtime import current_runtime
from ..private import torch_tensors

_resize = torch.UntypedStorage.resize_


class _Thread(threading.local):
    # Called with a storage that is resized, its bytes, and those that it shall have.
    resized: Callable[[torch.UntypedStorage, int, int], None] | None = None


here = _Thread()


class VirtualStorage(torch.UntypedStorage):
    """What `untyped_storage()` of a virtual tensor is; `vgpu_allocation` is its memory."""

    vgpu_allocation: Allocation

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stub
        """The device, as programs call it."""
        return naming().device(self.vgpu_allocation.memory.device)

    @property
    def has_values(self) -> bool:
        """Whether there are bytes, and not their number only (see `shape_only`)."""
        return torch_tensors.storage_device(self).type != "meta"

    def nbytes(self) -> int:
        """The number of bytes."""
        return super().nbytes() if self.has_values else self.vgpu_allocation.requested_bytes

    def size(self) -> int:
        """The number of bytes."""
        return self.nbytes()

    def __len__(self) -> int:
        return self.nbytes()

    def data_ptr(self) -> int:
        """The address of the bytes, which tells apart what shares memory and what does not."""
        if not self.nbytes():
            return 0
        return super().data_ptr() if self.has_values else id(self.vgpu_allocation)

    def clone(self) -> torch.UntypedStorage:
        """A copy of the bytes, on the same device."""
        place = device(self.vgpu_allocation.memory.device)
        return torch.empty(0, dtype=torch.uint8, device=place).set_(self).clone().untyped_storage()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.cpu().__reduce_ex__(protocol)


def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """`UntypedStorage.resize_`: free the memory, and take as much; what it held is kept as far as
    it has room.

    `size` is in bytes. Raises OutOfMemoryError. It is a method of the base class, for torch's
    trackers of memory replace that one.
    """
    if not isinstance(storage, VirtualStorage):
        return _resize(storage, size)
    allocation = storage.vgpu_allocation
    rt, index = current_runtime(), allocation.memory.device
    allocation.replace(size, rt.current_stream(index))
    if storage.has_values:
        if here.resized is not None:
            here.resized(storage, storage.nbytes(), size)
        _resize(storage, size)
    rt.note_memory(index)
    return storage


def has_room(values: torch.Tensor) -> bool:
    """Whether a tensor's storage has the bytes of all its elements, and is not freed."""
    last = sum((n - 1) * step for n, step in zip(values.shape, values.stride(), strict=True))
    bytes_ = (values.storage_offset() + last + 1) * values.element_size()
    return not values.numel() or values.untyped_storage().nbytes() >= bytes_


def storage_of(values: torch.Tensor, allocation: Allocation) -> VirtualStorage:
    """The storage of the values of a virtual tensor, which from now on knows its memory."""
    storage = values.untyped_storage()
    if type(storage) is torch.UntypedStorage:
        storage.__class__ = VirtualStorage
    assert isinstance(storage, VirtualStorage), "no other library has made the values"
    storage.vgpu_allocation = allocation
    return storage
